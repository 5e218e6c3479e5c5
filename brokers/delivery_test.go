package brokers_test

import (
	"reflect"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

// origin is a Token that knows the Origin of a first delivery.
type origin struct{}

func (origin) Origin() brokers.Headers { return brokers.Headers{{Name: "place", Value: "here"}} }

func TestMetaOfADelivery(t *testing.T) {
	carried := brokers.Meta{Attempt: 2, Origin: brokers.Headers{{Name: "place", Value: "before"}}}
	for _, tt := range []struct {
		name string
		d    brokers.Delivery
		want brokers.Meta
	}{
		{"nothing", brokers.Delivery{}, brokers.Meta{}},
		{"a token that knows no origin", brokers.Delivery{Token: 1}, brokers.Meta{}},
		{"a first delivery", brokers.Delivery{Token: origin{}}, brokers.Meta{Origin: origin{}.Origin()}},
		{"a retry", brokers.Delivery{Carried: &carried, Token: origin{}}, carried},
	} {
		if got := tt.d.Meta(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	d := brokers.Delivery{Carried: &carried}
	if m := d.Meta(); m.Attempt == 2 {
		m.Attempt++
	}
	if carried.Attempt != 2 {
		t.Error("a change of the copy is one of what others share")
	}
}
