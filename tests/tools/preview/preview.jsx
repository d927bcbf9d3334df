// A dashboard of ours drawn with Grafana's own components, from its JSON and what Prometheus answered.
// window.PAGE: { board, from, to (ms), panels: [{ panel, frames: [{ ref, legend, labels, times (ms), values }] }] }
import React from 'react';
import { createRoot } from 'react-dom/client';

// By require: their ES modules import CommonJS ones as Node does, and esbuild then takes the wrong default.
const {
  createTheme, dateTime, FieldType, getDisplayProcessor, LoadingState, ThemeContext, VizOrientation,
} = require('@grafana/data');
const {
  BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, PanelChrome, Table, TimeSeries,
} = require('@grafana/ui');

const theme = createTheme({ colors: { mode: 'light' } });
const PAGE_WIDTH = 1400;
const CELL_WIDTH = PAGE_WIDTH / 24;
const CELL_HEIGHT = 34;
const GAP = 8;

function setDeep(target, path, value) {
  const steps = path.split('.');
  const last = steps.pop();
  const holder = steps.reduce((at, step) => (at[step] ??= {}), target);
  holder[last] = value;
}

// Of Grafana's matchers those three that our dashboards use.
function configOf(panel, ref, name, type) {
  const config = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    const own = { byFrameRefID: ref, byName: name, byType: type }[matcher.id];
    if (own === matcher.options) {
      properties.forEach(({ id, value }) => setDeep(config, id, value));
    }
  }
  return config;
}

function makeField(panel, ref, name, type, values, index = 0) {
  const config = configOf(panel, ref, name, type);
  const field = { name, type, values, config: { ...config, displayName: name }, labels: {}, state: { seriesIndex: index } };
  field.display = getDisplayProcessor({ field, theme });
  return field;
}

function seriesFrames(panel, series) {
  return series.map((one, index) => {
    const time = makeField(panel, one.ref, 'Time', FieldType.time, one.times);
    time.config = {};
    const value = makeField(panel, one.ref, one.legend, FieldType.number, one.values, index);
    return { refId: one.ref, name: one.legend, fields: [time, value], length: one.times.length };
  });
}

// What the transformation "organize" leaves of the series: columns of labels that one of them has, and Value.
function tableFrame(panel, series) {
  const { renameByName, indexByName } = panel.transformations[0].options;
  const columns = Object.keys(renameByName)
    .filter((column) => column === 'Value' || series.some((one) => column in one.labels))
    .sort((a, b) => indexByName[a] - indexByName[b]);
  const fields = columns.map((column) => {
    const isValue = column === 'Value';
    const values = series.map((one) => (isValue ? one.values.at(-1) : one.labels[column] ?? ''));
    const field = makeField(panel, 'A', renameByName[column], isValue ? FieldType.number : FieldType.string, values);
    if (!isValue) {
      field.config.unit = undefined;
      field.display = getDisplayProcessor({ field, theme });
    }
    return field;
  });
  return { refId: 'A', fields, length: series.length };
}

function Bars({ panel, series, width, height }) {
  const most = Math.max(...series.map((one) => one.values.at(-1)));
  const each = Math.min(40, Math.floor(height / Math.max(series.length, 1)));
  return series.map((one, index) => {
    const field = makeField(panel, 'A', one.legend, FieldType.number, one.values);
    field.config = { ...field.config, min: 0, max: most };
    field.display = getDisplayProcessor({ field, theme });
    const value = { ...field.display(one.values.at(-1)), title: one.legend };
    return (
      <BarGauge key={index} theme={theme} width={width} height={each - 4} itemSpacing={4} field={field.config}
        display={field.display} value={value} orientation={VizOrientation.Horizontal} displayMode="basic"
        showUnfilled alignmentFactors={{ title: 'n4 GPU1 xxx', text: '100.0%' }} />
    );
  });
}

function Body({ panel, series, width, height }) {
  if (series.length === 0) {
    return <div style={{ padding: 16, color: theme.colors.text.secondary }}>{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>;
  }
  switch (panel.type) {
    case 'timeseries':
      return (
        <TimeSeries frames={seriesFrames(panel, series)} width={width} height={height} timeZone="utc"
          timeRange={{ from: dateTime(window.PAGE.from), to: dateTime(window.PAGE.to), raw: { from: '', to: '' } }}
          legend={panel.options.legend} />
      );
    case 'stat': {
      const field = makeField(panel, 'A', panel.title, FieldType.number, series[0].values);
      const value = { ...field.display(series[0].values.at(-1)), title: '' };
      return <BigValue theme={theme} width={width} height={height} value={value}
        colorMode={BigValueColorMode.None} graphMode={BigValueGraphMode.None} />;
    }
    case 'bargauge':
      return <Bars panel={panel} series={series} width={width} height={height} />;
    case 'table':
      return <Table data={tableFrame(panel, series)} width={width} height={height} />;
    default:
      throw new Error(`no preview of a ${panel.type}`);
  }
}

function Placed({ panel, frames }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute', left: x * CELL_WIDTH, top: y * CELL_HEIGHT };
  if (panel.type === 'row') {
    return <div style={{ ...place, padding: '8px 4px', fontWeight: 500 }}>{panel.title}</div>;
  }
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={w * CELL_WIDTH - GAP}
        height={h * CELL_HEIGHT - GAP} loadingState={LoadingState.Done}>
        {(width, height) => <Body panel={panel} series={frames} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

const style = document.createElement('style');
style.textContent = `* { box-sizing: border-box; scrollbar-width: none } body { margin: 12px; background: ${theme.colors.background.canvas}; color: ${theme.colors.text.primary};
  overflow: hidden; font: 14px Inter, "DejaVu Sans", sans-serif } ul { list-style: none; padding: 0 } table { border-collapse: collapse }`;
document.head.append(style);
createRoot(document.getElementById('page')).render(
  <ThemeContext.Provider value={theme}>
    <h3 style={{ margin: '0 4px 8px' }}>{window.PAGE.board.title}</h3>
    <div style={{ position: 'relative', width: PAGE_WIDTH }}>
      {window.PAGE.panels.map(({ panel, frames }, index) => <Placed key={index} panel={panel} frames={frames} />)}
    </div>
  </ThemeContext.Provider>
);
