<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <renderer-v2 type="singleSymbol" symbollevels="0" enableorderby="0">
    <symbols>
      <symbol type="marker" name="0" alpha="1" clip_to_extent="1" force_rhr="0">
        <layer class="SimpleMarker" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option type="QString" name="name" value="circle" />
            <Option type="QString" name="color" value="230,126,34,25" />
            <Option type="QString" name="outline_color" value="230,126,34,110" />
            <Option type="QString" name="outline_width" value="0.2" />
            <Option type="QString" name="size_unit" value="RenderMetersInMapUnits" />
            <Option type="QString" name="size" value="1000" />
          </Option>
          <data_defined_properties>
            <Option type="Map">
              <Option type="Map" name="properties">
                <Option type="Map" name="size">
                  <Option type="bool" name="active" value="true" />
                  <Option type="QString" name="expression" value="2 * &quot;estimate_error_m&quot;" />
                  <Option type="int" name="type" value="3" />
                </Option>
              </Option>
            </Option>
          </data_defined_properties>
        </layer>
        <layer class="SimpleMarker" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option type="QString" name="name" value="circle" />
            <Option type="QString" name="outline_style" value="no" />
            <Option type="QString" name="size_unit" value="MM" />
            <Option type="QString" name="color" value="211,84,0,255" />
            <Option type="QString" name="size" value="1.4" />
          </Option>
        </layer>
      </symbol>
    </symbols>
  </renderer-v2>
</qgis>
