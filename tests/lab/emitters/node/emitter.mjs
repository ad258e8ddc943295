#!/usr/bin/env node
// The stock OpenTelemetry SDK of Node, measuring what it reads from its standard input.
//
// Operations, answers and variables are those of the Go program beside it.

import { createInterface } from "node:readline";

import { OTLPMetricExporter as Json } from "@opentelemetry/exporter-metrics-otlp-http";
import { OTLPMetricExporter as Protobuf } from "@opentelemetry/exporter-metrics-otlp-proto";
import {
  defaultResource,
  detectResources,
  envDetector,
} from "@opentelemetry/resources";
import {
  AggregationType,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";

const EXPORTERS = { "http/json": Json, "http/protobuf": Protobuf };

if (process.argv[2] === "--version") {
  console.log(defaultResource().attributes["telemetry.sdk.version"]);
  process.exit();
}

const Exporter = EXPORTERS[process.env.OTEL_EXPORTER_OTLP_PROTOCOL];
const exportIntervalMillis = Number(process.env.OTEL_METRIC_EXPORT_INTERVAL);
const provider = new MeterProvider({
  resource: defaultResource().merge(detectResources({ detectors: [envDetector] })),
  readers: [
    new PeriodicExportingMetricReader({
      exporter: new Exporter(),
      exportIntervalMillis,
      exportTimeoutMillis: exportIntervalMillis, // it may not be longer
    }),
  ],
  views: [
    {
      instrumentName: "*.exponential",
      aggregation: { type: AggregationType.EXPONENTIAL_HISTOGRAM, options: { recordMinMax: true } },
    },
  ],
});
const meter = provider.getMeter("emitter");

const MAKERS = {
  counter: (name) => meter.createCounter(name, { valueType: 0 }),
  up_down_counter: (name) => meter.createUpDownCounter(name, { valueType: 0 }),
  histogram: (name) => meter.createHistogram(name),
  gauge: (name) => meter.createGauge(name),
  int_gauge: (name) => meter.createGauge(name, { valueType: 0 }),
  observable_counter: (name) => meter.createObservableCounter(name),
  observable_up_down_counter: (name) => meter.createObservableUpDownCounter(name),
  observable_gauge: (name) => meter.createObservableGauge(name),
};
const instruments = new Map();
const observed = new Map();

function observe(instrument, name, value, attributes) {
  if (!observed.has(name)) {
    const values = new Map();
    observed.set(name, values);
    instrument.addCallback((result) => {
      for (const [last, of] of values.values()) result.observe(last, of);
    });
  }
  observed.get(name).set(JSON.stringify(attributes), [value, attributes]);
}

for await (const line of createInterface({ input: process.stdin })) {
  const { op, name, values, attributes } = JSON.parse(line);
  if (op === "flush") {
    await provider.forceFlush();
  } else {
    if (!instruments.has(name)) instruments.set(name, MAKERS[op](name));
    const instrument = instruments.get(name);
    for (const value of values.map(Number)) {
      if (op.startsWith("observable_")) observe(instrument, name, value, attributes);
      else (instrument.add ?? instrument.record).call(instrument, value, attributes);
    }
  }
  console.log("ok");
}
await provider.shutdown();
