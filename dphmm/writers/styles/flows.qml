<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <renderer-v2 type="singleSymbol" symbollevels="0" enableorderby="0">
    <symbols>
      <symbol type="line" name="0" alpha="1" clip_to_extent="1" force_rhr="0">
        <layer class="SimpleLine" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option type="QString" name="line_color" value="211,84,0,150" />
            <Option type="QString" name="line_width" value="0.5" />
            <Option type="QString" name="line_width_unit" value="MM" />
            <Option type="QString" name="capstyle" value="round" />
          </Option>
          <data_defined_properties>
            <Option type="Map">
              <Option type="Map" name="properties">
                <Option type="Map" name="outlineWidth">
                  <Option type="bool" name="active" value="true" />
                  <Option type="QString" name="expression" value="&quot;width_mm&quot;" />
                  <Option type="int" name="type" value="3" />
                </Option>
              </Option>
            </Option>
          </data_defined_properties>
        </layer>
      </symbol>
    </symbols>
  </renderer-v2>
</qgis>
