import { OTLPMetricExporter } from "@opentelemetry/exporter-metrics-otlp-proto";
import { defaultResource, detectResources, envDetector, serviceInstanceIdDetector } from "@opentelemetry/resources";
import { AggregationTemporality, InstrumentType, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";

const exporter = new OTLPMetricExporter();
exporter.selectAggregationTemporality = (type) =>
  type === InstrumentType.GAUGE ? AggregationTemporality.DELTA : AggregationTemporality.CUMULATIVE;
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
