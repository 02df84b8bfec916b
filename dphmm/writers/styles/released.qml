<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <renderer-v2 type="singleSymbol" symbollevels="0" enableorderby="0">
    <symbols>
      <symbol type="marker" name="0" alpha="1" clip_to_extent="1" force_rhr="0">
        <layer class="SimpleMarker" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option type="QString" name="name" value="cross2" />
            <Option type="QString" name="outline_style" value="solid" />
            <Option type="QString" name="size_unit" value="MM" />
            <Option type="QString" name="color" value="120,120,120,255" />
            <Option type="QString" name="size" value="1.8" />
          </Option>
        </layer>
      </symbol>
    </symbols>
  </renderer-v2>
</qgis>
