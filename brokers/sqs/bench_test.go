package sqs_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// full answers at once to polls of a queue that is never empty, and to deletions;
// to other calls as next does.
type full struct {
	next            http.RoundTripper
	polled, deleted []byte
}

func newFull(b *testing.B, next http.RoundTripper) *full {
	type object map[string]any
	body := strings.Repeat("x", 256)
	sum := fmt.Sprintf("%x", md5.Sum([]byte(body)))
	messages, deleted := make([]object, 10), make([]object, 10)
	for i := range messages {
		messages[i] = object{
			"MessageId": fmt.Sprintf("5fea7756-0ea4-451a-a703-a558b933e27%d", i), "ReceiptHandle": strings.Repeat("handle", 20) + fmt.Sprint(i),
			"Body": body, "MD5OfBody": sum,
			"Attributes": object{"ApproximateReceiveCount": "1", "SentTimestamp": "1760000000000"},
		}
		deleted[i] = object{"Id": fmt.Sprint(i)}
	}
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			b.Fatal(err)
		}
		return text
	}
	return &full{next: next, polled: encode(object{"Messages": messages}), deleted: encode(object{"Successful": deleted, "Failed": []object{}})}
}

func (f *full) RoundTrip(r *http.Request) (*http.Response, error) {
	var answer []byte
	switch r.Header.Get("X-Amz-Target") {
	case "AmazonSQS.ReceiveMessage":
		answer = f.polled
	case "AmazonSQS.DeleteMessageBatch":
		answer = f.deleted
	default:
		return f.next.RoundTrip(r)
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header:        http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		ContentLength: int64(len(answer)), Body: io.NopCloser(bytes.NewReader(answer)),
	}, nil
}

// BenchmarkWithoutNetwork is what a message costs the adapter besides the network:
// received with nine others, and deleted.
func BenchmarkWithoutNetwork(b *testing.B) {
	server := sqstest.New(sqstest.Options{})
	defer server.Close()
	config := server.Config()
	config.HTTPClient = &http.Client{Transport: newFull(b, server.Transport())}
	broker, err := sqs.New(sqs.Options{Config: config, Create: true})
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close(context.WithoutCancel(b.Context()))
	source, err := broker.Open(b.Context(), brokers.Subscription{Topics: []string{"jobs"}, InFlight: 800, MaxAttempts: 10})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		ds, err := source.Receive(b.Context(), 100)
		if err != nil {
			b.Fatal(err)
		}
		batch := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			batch[i] = brokers.Settlement{Delivery: d, Action: brokers.Ack}
		}
		if errs := source.Settle(b.Context(), batch); errs != nil {
			b.Fatal(errs)
		}
		done += len(ds)
	}
}
