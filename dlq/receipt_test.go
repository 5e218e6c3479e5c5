package dlq

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

// fullReceipt is one with every field set.
func fullReceipt() Receipt {
	return Receipt{
		Send: "7.2.4f1a", Outcome: "dead", MessageID: "заказ 7f3a-1", Topic: "orders", Group: "billing",
		Class: "transient", Fingerprint: "9f86d081884c7d65", Reason: "exhausted", By: "worker-1/4711", Attempt: 3, At: died,
	}
}

func TestReceiptRoundTrip(t *testing.T) {
	for i := range reflect.TypeFor[Receipt]().NumField() {
		if reflect.ValueOf(fullReceipt()).Field(i).IsZero() {
			t.Errorf("field %s is not tried", reflect.TypeFor[Receipt]().Field(i).Name)
		}
	}
	for _, want := range []Receipt{
		fullReceipt(),
		{Send: "a", Outcome: "failed"},
		{Send: "a", Outcome: "handled", At: died},
	} {
		m := want.Message()
		got, err := DecodeReceipt(m)
		if err != nil || got != want {
			t.Errorf("decoded %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestReceiptOfAnything(t *testing.T) {
	evil := strings.Repeat("\x1b\xff\u202e<&\n", 1000)
	r := Receipt{
		Send: "a", Outcome: "dead", MessageID: evil, Topic: evil, Group: evil, Class: evil, Fingerprint: evil,
		Reason: evil, By: evil, Attempt: math.MaxInt, At: time.Unix(math.MaxInt32*1000, 0),
	}
	got, err := DecodeReceipt(r.Message())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got.fields() {
		if checkSafe(t, *f.text, f.max, ""); *f.text == "" {
			t.Error("a text that had to be cut is gone")
		}
	}
	if got.Attempt != text.MaxCount || !got.At.IsZero() {
		t.Errorf("attempt %d at %v, want what a header may have", got.Attempt, got.At)
	}
	if early := (Receipt{Send: "a", Outcome: "dead", Attempt: -1, At: time.Unix(-1, 0)}); string(early.Message().Body) != `{"v":1,"send":"a","outcome":"dead"}` {
		t.Errorf("before 1970: %s", early.Message().Body)
	}
}

func TestDecodeReceipt(t *testing.T) {
	long := strings.Repeat("x", maxReceipt)
	for body, want := range map[string]*Receipt{
		`{"v":1,"send":"a","outcome":"dead"}`:                                                       {Send: "a", Outcome: "dead"},
		`{"v":2,"send":"a","outcome":"dead","colour":"red"}`:                                        {Send: "a", Outcome: "dead"},
		`{"v":1,"send":"a","outcome":"failed","attempt":-7,"at":-1}`:                                {Send: "a", Outcome: "failed"},
		`{"v":1,"send":"a","outcome":"failed","attempt":20000,"at":253402300800000}`:                {Send: "a", Outcome: "failed", Attempt: text.MaxCount},
		`{"v":1,"send":"a","outcome":"handled","id":"\u001b[31m","by":"\ud800","topic":"or\u202e"}`: {Send: "a", Outcome: "handled", By: "\ufffd"},
		`{"v":1,"send":"a","outcome":"dead","reason":"` + long[:65] + `"}`:                          {Send: "a", Outcome: "dead"},

		``:                                      nil,
		`null`:                                  nil,
		`[]`:                                    nil,
		`"a"`:                                   nil,
		`{}`:                                    nil,
		"\xff":                                  nil,
		`{"v":1}`:                               nil,
		`{"send":"a","outcome":"dead"}`:         nil,
		`{"v":0,"send":"a","outcome":"dead"}`:   nil,
		`{"v":1,"outcome":"dead"}`:              nil,
		`{"v":1,"send":"a b","outcome":"dead"}`: nil,
		`{"v":1,"send":"` + long[:65] + `","outcome":"dead"}`: nil,
		`{"v":1,"send":"a","outcome":"resurrected"}`:          nil,
		`{"v":1,"send":"a","outcome":"dead"} {}`:              nil,
		`{"v":1,"send":"a","outcome":"dead","attempt":"3"}`:   nil,
		`{"v":1,"send":"a","outcome":"dead","attempt":1e99}`:  nil,
		`{"v":1,"send":"a","outcome":"dead","id":["a"]}`:      nil,
		`{"v":1,"send":"a","outcome":"dead","x":"` + long:     nil,
		strings.Repeat("[", maxReceipt):                       nil,
	} {
		got, err := DecodeReceipt(brokers.Message{Body: []byte(body)})
		switch {
		case want == nil && (!errors.Is(err, errNotReceipt) || got != Receipt{} || len(err.Error()) > 512):
			t.Errorf("%.80s is read as %+v, %v", body, got, err)
		case want != nil && (err != nil || got != *want):
			t.Errorf("%.80s is read as %+v, %v, want %+v", body, got, err, *want)
		}
	}
}

func FuzzDecodeReceipt(f *testing.F) {
	f.Add(fullReceipt().Message().Body)
	f.Add([]byte(`{"v":1,"send":"a","outcome":"failed","id":"\u0000\ud800\u202e\\","attempt":99999,"at":253402300799999}`))
	f.Add([]byte(`{"V":9e3,"Send":"a","send":"b","outcome":"dead","at":1.5}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeReceipt(brokers.Message{Body: body})
		if err != nil {
			if !errors.Is(err, errNotReceipt) || r != (Receipt{}) {
				t.Fatalf("error %v with %+v", err, r)
			}
			return
		}
		for _, s := range []string{r.Send, r.Outcome, r.MessageID, r.Topic, r.Group, r.Class, r.Fingerprint, r.Reason, r.By} {
			checkSafe(t, s, text.MaxName, "")
		}
		if again, err := DecodeReceipt(r.Message()); err != nil || again != r {
			t.Fatalf("encoded again: %+v, %v, want %+v", again, err, r)
		}
	})
}
