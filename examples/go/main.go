// A generator that reports its reward by step and counts its tokens, with the stock SDK of Go.
package main

import (
	"context"
	"log"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
)

func temporality(kind sdk.InstrumentKind) metricdata.Temporality {
	if kind == sdk.InstrumentKindGauge || os.Getenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE") == "delta" {
		return metricdata.DeltaTemporality // each step once
	}
	return metricdata.CumulativeTemporality // a lost export loses no total
}

func main() {
	ctx := context.Background()
	exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithTemporalitySelector(temporality))
	if err != nil {
		log.Fatal(err)
	}
	// WithService gives the process a service.instance.id.
	process, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithService(), resource.WithFromEnv())
	if err != nil {
		log.Fatal(err)
	}
	provider := sdk.NewMeterProvider(sdk.WithReader(sdk.NewPeriodicReader(exporter)), sdk.WithResource(process))
	defer provider.Shutdown(ctx)

	meter := provider.Meter("my.generator")
	reward, _ := meter.Float64Gauge("reward")
	tokens, _ := meter.Int64Counter("tokens", metric.WithUnit("{token}"))
	for step := 1; step <= 5; step++ {
		reward.Record(ctx, float64(step)/4, metric.WithAttributes(attribute.Int("rl.loop.iteration", step)))
		tokens.Add(ctx, 4096)
	}
}
