package sqs

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

func TestSealFormat(t *testing.T) {
	key := "k\x00"
	e := envelope{key: &key, headers: brokers.Headers{{Name: "a", Value: "1"}, {Name: "a", Value: "\xff", Type: "Binary"}}, body: []byte("say \"hi\"\n<&>\uffff")}
	const want = `{"redrive":{"v":1,"key":"k\u0000","headers":[["a","1"],["a","base64:/w==","Binary"]],"body":"say \"hi\"\n<&>\uffff"}}`
	if got := e.seal(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := (envelope{}).seal(); got != `{"redrive":{"v":1,"body":""}}` {
		t.Errorf("an empty one: %s", got)
	}
}

func TestOpenIsStrict(t *testing.T) {
	for _, body := range []string{
		"", "x", "{}", "[]", "null", `{"redrive":null}`, `{"redrive":[]}`, `{"redrive":{}}`, `{"redrive":{"v":0,"body":""}}`,
		`{"redrive":{"v":-1,"body":""}}`, `{"redrive":{"v":"1","body":""}}`,
		`{"redrive":{"v":1}}`, `{"redrive":{"v":1,"body":null}}`, `{"redrive":{"v":1,"body":""},"more":1}`, `{"redrive":{"v":1,"body":"","more":1}}`,
		`{"redrive":{"v":1,"body":""}} {}`, `{"redrive":{"v":1,"body":1}}`, `{"redrive":{"v":1,"body":"base64:="}}`,
		`{"redrive":{"v":1,"body":"","key":"base64:x"}}`, `{"redrive":{"v":1,"body":"","headers":[["a"]]}}`,
		`{"redrive":{"v":1,"body":"","headers":[["a","b","c","d"]]}}`, `{"redrive":{"v":1,"body":"","headers":[["a","base64:!"]]}}`,
		`{"redrive":{"v":1,"body":"","headers":[` + strings.Repeat(`["a","b"],`, 1000) + `["a","b"]]}}`,
	} {
		if e, err := open([]byte(body)); !errors.Is(err, errBroken) {
			t.Errorf("%.100s is opened: %+v, %v", body, e, err)
		}
	}
	if _, err := open([]byte(`{"redrive":{"v":3,"parts":{}}}`)); !errors.Is(err, errNewer) {
		t.Errorf("a later version: %v, want errNewer", err)
	}
	spaced := ` { "redrive" : { "body" : "x", "v" : 1 } } `
	if e, err := open([]byte(spaced)); err != nil || string(e.body) != "x" {
		t.Errorf("other white space and order: %+v, %v", e, err)
	}
}

func TestSealPicksTheShorterSpelling(t *testing.T) {
	for body, most := range map[string]float64{
		strings.Repeat("\x00", 3000):     1.4,
		strings.Repeat("\xff", 3000):     1.4,
		strings.Repeat(`"key":1,`, 1000): 1.3,
		strings.Repeat("ü", 3000):        1.02,
		strings.Repeat(`"`, 3000):        1.4,
	} {
		sealed := (envelope{body: []byte(body)}).seal()
		if ratio := float64(len(sealed)) / float64(len(body)); ratio > most {
			t.Errorf("%.10q... grows to %.2f of its size, want at most %.2f", body, ratio, most)
		}
	}
}

func TestPackFlags(t *testing.T) {
	notes := brokers.Headers{{Name: "redrive-id", Value: "x\ufffe\uffff"}}
	const want = `{"sqs":"keyless,envelope","id":"x\ufffe\uffff"}`
	got := pack(notes, nil, flagKeyless, flagEnvelope)
	if flags, _ := unpack(got); got != want || !slices.Equal(flags, []string{flagKeyless, flagEnvelope}) {
		t.Errorf("pack = %s, want %s; read with the flags %q", got, want, flags)
	}
	for _, packed := range []string{"", `{}`, `{"id":"envelope"}`, `{"sqs":"envelopes"}`, `{"SQS":"envelope"}`, `{"id":"x","sqs":"envelope"}`} {
		if flags, _ := unpack(packed); slices.Contains(flags, flagEnvelope) {
			t.Errorf("%s has the flag", packed)
		}
	}
}

func TestMovedAttributes(t *testing.T) {
	moved := brokers.Headers{{Name: "n", Value: "42", Type: "Number"}, {Name: "b", Value: "\xff", Type: "Binary"}}
	const want = `{"sqs":"keyless,moved","moved":[["n","42","Number"],["b","base64:/w==","Binary"]],"id":"x"}`
	got := pack(brokers.Headers{{Name: "redrive-id", Value: "x"}}, moved, flagKeyless)
	if _, read := unpack(got); got != want || !slices.Equal(read, moved) {
		t.Errorf("pack = %s, want %s; read as %v", got, want, read)
	}
	for _, packed := range []string{`{"moved":[["a","b"]]}`, `{"sqs":"moved"}`, `{"sqs":"moved","moved":"a"}`, `{"sqs":"moved","moved":[["a"]]}`, `{"sqs":"moved","moved":[["redrive-meta","{}"]]}`} {
		if _, got := unpack(packed); len(got) > 0 {
			t.Errorf("%s is read as %v", packed, got)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"redrive":{"v":1,"key":"k","headers":[["a","base64:/w==","Binary"]],"body":"x"}}`))
	f.Add([]byte(`{"redrive":{"v":2}}`))
	f.Add([]byte(`{"redrive":{"v":1,"headers":[[null,"b"]],"body":"base64:"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := open(body)
		if err != nil {
			if !errors.Is(err, errBroken) && !errors.Is(err, errNewer) {
				t.Errorf("err = %v", err)
			}
			return
		}
		again, err := open([]byte(e.seal()))
		if err != nil || !bytes.Equal(again.body, e.body) || !reflect.DeepEqual(again.headers, e.headers) || !reflect.DeepEqual(again.key, e.key) {
			t.Errorf("sealed and opened again: %+v, %v, want %+v", again, err, e)
		}
	})
}
