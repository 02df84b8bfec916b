<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <renderer-v2 type="singleSymbol" symbollevels="0" enableorderby="0">
    <symbols>
      <symbol type="fill" name="0" alpha="1" clip_to_extent="1" force_rhr="0">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option type="QString" name="color" value="41,128,185,30" />
            <Option type="QString" name="outline_color" value="90,90,90,160" />
            <Option type="QString" name="outline_width" value="0.2" />
          </Option>
        </layer>
      </symbol>
    </symbols>
  </renderer-v2>
</qgis>
