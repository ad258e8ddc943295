// The stock OpenTelemetry SDK of Go, measuring what it reads from its standard input.
//
// Each line is one operation in JSON, answered by a line "ok":
//
//	{"op": "histogram", "name": "took", "values": ["0.5", "NaN"], "attributes": {"k": 1}}
//	{"op": "flush"}
//
// The standard OTEL_* variables say who it is, where it exports, how and how often. With the arguments
// "prometheus HOST:PORT" it serves /metrics there instead.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

type operation struct {
	Op         string         `json:"op"`
	Name       string         `json:"name"`
	Values     []string       `json:"values"`
	Attributes map[string]any `json:"attributes"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println(otel.Version())
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx := context.Background()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { fmt.Fprintln(os.Stderr, err) }))
	reader, err := newReader(ctx)
	if err != nil {
		return err
	}
	exponential := sdk.NewView(
		sdk.Instrument{Name: "*.exponential"},
		sdk.Stream{Aggregation: sdk.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 20}},
	)
	provider := sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithView(exponential))
	work := &work{
		meter:    provider.Meter("emitter"),
		flush:    provider.ForceFlush,
		record:   map[string]func(float64, metric.MeasurementOption){},
		observed: map[string]map[attribute.Distinct]observation{},
	}
	if err := work.all(ctx, os.Stdin); err != nil {
		return err
	}
	return provider.Shutdown(ctx)
}

func newReader(ctx context.Context) (sdk.Reader, error) {
	if len(os.Args) > 2 && os.Args[1] == "prometheus" {
		return serve(os.Args[2])
	}
	var exporter sdk.Exporter
	var err error
	if os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" {
		exporter, err = otlpmetricgrpc.New(ctx)
	} else {
		exporter, err = otlpmetrichttp.New(ctx)
	}
	return sdk.NewPeriodicReader(exporter), err
}

func serve(address string) (sdk.Reader, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go http.Serve(listener, promhttp.Handler())
	return prometheus.New()
}

// work keeps one instrument of each name.
type work struct {
	meter    metric.Meter
	flush    func(context.Context) error
	record   map[string]func(float64, metric.MeasurementOption)
	observed map[string]map[attribute.Distinct]observation
}

type observation struct {
	value float64
	of    metric.MeasurementOption
}

func (w *work) all(ctx context.Context, input io.Reader) error {
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var op operation
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.UseNumber()
		if err := decoder.Decode(&op); err != nil {
			return err
		}
		if err := w.one(ctx, op); err != nil {
			return err
		}
		fmt.Println("ok")
	}
	return lines.Err()
}

func (w *work) one(ctx context.Context, op operation) error {
	if op.Op == "flush" {
		return w.flush(ctx)
	}
	set := attribute.NewSet(pairs(op.Attributes)...)
	if strings.HasPrefix(op.Op, "observable_") {
		return w.observe(op, set)
	}
	record := w.record[op.Name]
	if record == nil {
		var err error
		if record, err = w.instrument(ctx, op); err != nil {
			return err
		}
		w.record[op.Name] = record
	}
	of := metric.WithAttributeSet(set)
	for _, text := range op.Values {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		record(value, of)
	}
	return nil
}

func (w *work) instrument(ctx context.Context, op operation) (func(float64, metric.MeasurementOption), error) {
	switch op.Op {
	case "counter":
		counter, err := w.meter.Int64Counter(op.Name)
		return func(v float64, of metric.MeasurementOption) { counter.Add(ctx, int64(v), of) }, err
	case "up_down_counter":
		counter, err := w.meter.Int64UpDownCounter(op.Name)
		return func(v float64, of metric.MeasurementOption) { counter.Add(ctx, int64(v), of) }, err
	case "histogram":
		histogram, err := w.meter.Float64Histogram(op.Name)
		return func(v float64, of metric.MeasurementOption) { histogram.Record(ctx, v, of) }, err
	case "gauge":
		gauge, err := w.meter.Float64Gauge(op.Name)
		return func(v float64, of metric.MeasurementOption) { gauge.Record(ctx, v, of) }, err
	case "int_gauge":
		gauge, err := w.meter.Int64Gauge(op.Name)
		return func(v float64, of metric.MeasurementOption) { gauge.Record(ctx, int64(v), of) }, err
	}
	return nil, errors.New("unknown operation " + op.Op)
}

func (w *work) observe(op operation, set attribute.Set) error {
	observed := w.observed[op.Name]
	if observed == nil {
		observed = map[attribute.Distinct]observation{}
		w.observed[op.Name] = observed
		all := func(_ context.Context, observer metric.Float64Observer) error {
			for _, one := range observed {
				observer.Observe(one.value, one.of.(metric.ObserveOption))
			}
			return nil
		}
		var err error
		switch op.Op {
		case "observable_counter":
			_, err = w.meter.Float64ObservableCounter(op.Name, metric.WithFloat64Callback(all))
		case "observable_up_down_counter":
			_, err = w.meter.Float64ObservableUpDownCounter(op.Name, metric.WithFloat64Callback(all))
		case "observable_gauge":
			_, err = w.meter.Float64ObservableGauge(op.Name, metric.WithFloat64Callback(all))
		default:
			err = errors.New("unknown operation " + op.Op)
		}
		if err != nil {
			return err
		}
	}
	for _, text := range op.Values {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		observed[set.Equivalent()] = observation{value, metric.WithAttributeSet(set)}
	}
	return nil
}

func pairs(attributes map[string]any) []attribute.KeyValue {
	found := make([]attribute.KeyValue, 0, len(attributes))
	for key, value := range attributes {
		switch value := value.(type) {
		case string:
			found = append(found, attribute.String(key, value))
		case bool:
			found = append(found, attribute.Bool(key, value))
		case json.Number:
			if whole, err := value.Int64(); err == nil {
				found = append(found, attribute.Int64(key, whole))
			} else if real, err := value.Float64(); err == nil {
				found = append(found, attribute.Float64(key, real))
			}
		case []any:
			texts := make([]string, len(value))
			for place, text := range value {
				texts[place] = fmt.Sprint(text)
			}
			found = append(found, attribute.StringSlice(key, texts))
		}
	}
	return found
}
