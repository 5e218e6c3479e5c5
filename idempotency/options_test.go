package idempotency_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/settings"
)

const (
	week = 7 * 24 * time.Hour
	keep = 2 * week
)

func TestOptions(t *testing.T) {
	good := idempotency.Options{Retention: week, Redrive: week}
	tests := []struct {
		name   string
		change func(*idempotency.Options)
		faults []string // the fields
		says   string
	}{
		{"good", func(*idempotency.Options) {}, nil, ""},
		{"zero", func(o *idempotency.Options) { *o = idempotency.Options{} }, []string{"Retention", "Redrive"}, "how long the broker may keep a message"},
		{"no redrive ever", func(o *idempotency.Options) { o.Redrive = -1 }, nil, ""},
		{"TTL as long as needed", func(o *idempotency.Options) { o.TTL = 2 * week }, nil, ""},
		{"TTL without redrive", func(o *idempotency.Options) { o.TTL, o.Redrive = week, -1 }, nil, ""},
		{"TTL too short", func(o *idempotency.Options) { o.TTL = 2*week - 1 }, []string{"TTL"}, "at least Retention plus Redrive (336h0m0s)"},
		{"TTL for ever", func(o *idempotency.Options) { o.TTL = math.MaxInt64 }, nil, ""},
		{"retention for ever", func(o *idempotency.Options) { o.Retention = math.MaxInt64 }, nil, ""},
		{"retention for ever with a TTL", func(o *idempotency.Options) { o.Retention, o.TTL = math.MaxInt64, week }, []string{"TTL"}, "use at least"},
		{"all negative", func(o *idempotency.Options) {
			*o = idempotency.Options{Retention: -1, Redrive: -2, TTL: -1, Lease: -1, Wait: -2}
		}, []string{"Retention", "Redrive", "TTL", "Lease", "Wait"}, "500ms"},
		{"lease too short", func(o *idempotency.Options) { o.Lease = time.Second - 1 }, []string{"Lease"}, "at least 1s"},
		{"shortest lease", func(o *idempotency.Options) { o.Lease = time.Second }, nil, ""},
		{"no wait", func(o *idempotency.Options) { o.Wait = -1 }, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := good
			tt.change(&o)
			middleware, err := idempotency.Once(idempotency.NewMemory(0), o)
			if (middleware == nil) != (err != nil) {
				t.Errorf("Once returns a middleware: %t, and the error %v", middleware != nil, err)
			}
			if fields := faultyFields(t, err); !slices.Equal(fields, tt.faults) {
				t.Errorf("faults = %q, want %q", fields, tt.faults)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the error %q does not say %q", err, tt.says)
			}
		})
	}
}

func faultyFields(t *testing.T, err error) (fields []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			fields = append(fields, faultyFields(t, e)...)
		}
		return fields
	}
	fault, ok := errors.AsType[*settings.Error](err)
	if !ok {
		t.Fatalf("%v is no *settings.Error", err)
	}
	return []string{strings.TrimPrefix(fault.Field, "Options.")}
}

func TestOnceWithoutStoreOrHandler(t *testing.T) {
	if _, err := idempotency.Once(nil, idempotency.Options{}); err == nil || !strings.Contains(err.Error(), "store is nil") || !strings.Contains(err.Error(), "Retention") {
		t.Errorf("Once(nil, zero) = %v, want both faults", err)
	}
	if h, _ := wrap(t, idempotency.NewMemory(0), nil, nil); h != nil {
		t.Error("no handler becomes a handler, and the consumer cannot complain any more")
	}
}
