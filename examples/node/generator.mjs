// A generator that reports its reward by step and counts its tokens, with the stock SDK of Node.
import { OTLPMetricExporter } from "@opentelemetry/exporter-metrics-otlp-proto";
import { defaultResource, detectResources, envDetector, serviceInstanceIdDetector } from "@opentelemetry/resources";
import { AggregationTemporality, InstrumentType, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";

const exporter = new OTLPMetricExporter();
const isDelta = process.env.OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE === "delta";
// A gauge's delta has each step once; a cumulative counter loses no total with a lost export.
exporter.selectAggregationTemporality = (type) =>
  isDelta || type === InstrumentType.GAUGE ? AggregationTemporality.DELTA : AggregationTemporality.CUMULATIVE;
const detected = detectResources({ detectors: [serviceInstanceIdDetector, envDetector] });
const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 1000, exportTimeoutMillis: 1000 });
const provider = new MeterProvider({ resource: defaultResource().merge(detected), readers: [reader] });

const meter = provider.getMeter("my.generator");
const reward = meter.createGauge("reward");
const tokens = meter.createCounter("tokens", { unit: "{token}" });
for (let step = 1; step <= 5; step++) {
  reward.record(step / 4, { "rl.loop.iteration": step });
  tokens.add(4096);
}
await provider.shutdown();
