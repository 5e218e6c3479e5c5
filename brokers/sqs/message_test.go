package sqs

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

var (
	now       = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	published = now.Add(-time.Hour)
	trace     = brokers.Header{Name: "AWSTraceHeader", Value: "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1", Type: "system"}
)

func limits() wire.Limits { return wire.Limits{Now: now, MaxDelay: time.Hour} }

func orders(fifo bool) *queue {
	name := "orders"
	if fifo {
		name += ".fifo"
	}
	return &queue{topic: name, url: "https://sqs.eu-west-1.amazonaws.com/123456789012/" + name, fifo: fifo}
}

// compose is queue.compose for a queue with a limit.
func compose(m brokers.Message, meta *brokers.Meta, fifo bool, limit int, delay time.Duration) (outgoing, error) {
	q := orders(fifo)
	q.limit = limit
	return q.compose(m, meta, delay)
}

// transmit is what SQS hands out for what was sent. It fails the test for what
// SQS would refuse.
func transmit(t testing.TB, out outgoing, limit int) types.Message {
	t.Helper()
	e := out.entry
	check := func(ok bool, format string, args ...any) {
		t.Helper()
		if !ok {
			t.Fatalf("SQS would refuse this: "+format, args...)
		}
	}
	legal := func(s string) bool {
		return s != "" && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
			return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
		}) < 0
	}
	size := len(*e.MessageBody)
	check(legal(*e.MessageBody), "the body %.80q", *e.MessageBody)
	check(len(e.MessageAttributes) <= 10, "%d attributes", len(e.MessageAttributes))
	m := types.Message{
		Body: e.MessageBody, MessageAttributes: e.MessageAttributes,
		MessageId: aws.String("4a4d0f2c-0000-4000-8000-000000000001"), ReceiptHandle: aws.String("handle"),
		Attributes: map[string]string{"ApproximateReceiveCount": "2", "SentTimestamp": strconv.FormatInt(now.Add(-time.Minute).UnixMilli(), 10)},
	}
	sum := md5.Sum([]byte(*e.MessageBody))
	m.MD5OfBody = aws.String(hex.EncodeToString(sum[:]))
	for name, value := range e.MessageAttributes {
		check(name != "" && len(name) <= 256 && !strings.HasPrefix(strings.ToLower(name), "aws."), "the attribute name %q", name)
		check(len(*value.DataType) <= 256, "the type %q", *value.DataType)
		if value.StringValue != nil {
			check(legal(*value.StringValue), "the value of %q: %.80q", name, *value.StringValue)
		} else {
			check(len(value.BinaryValue) > 0, "the empty value of %q", name)
		}
		size += len(name) + len(*value.DataType) + len(aws.ToString(value.StringValue)) + len(value.BinaryValue)
	}
	check(size == out.size && size <= limit, "%d bytes, said to be %d, limit %d", size, out.size, limit)
	if e.MessageGroupId != nil {
		check(takesGroup(*e.MessageGroupId), "the group %q", *e.MessageGroupId)
		m.Attributes["MessageGroupId"] = *e.MessageGroupId
	}
	if e.MessageDeduplicationId != nil {
		check(takesGroup(*e.MessageDeduplicationId) && e.DelaySeconds == 0 && e.MessageGroupId != nil, "what a FIFO queue wants: %+v", e)
	}
	for name, value := range e.MessageSystemAttributes {
		m.Attributes[name] = *value.StringValue
	}
	return m
}

func roundTrip(t testing.TB, m brokers.Message, meta *brokers.Meta, fifo bool) record {
	t.Helper()
	out, err := compose(m, meta, fifo, 0, 0)
	if err != nil {
		t.Fatalf("compose: %v", err)
	}
	return parse(transmit(t, out, 1<<20), orders(fifo), limits())
}

func sample() brokers.Message {
	return brokers.Message{
		ID: "order-1", Topic: "orders", Key: "customer-7", Body: []byte(`{"id": 1}`), PublishedAt: published,
		Headers: brokers.Headers{{Name: "content-type", Value: "application/json"}, {Name: "n", Value: "42", Type: "Number"}},
	}
}

func with(change func(*brokers.Message)) brokers.Message {
	m := sample()
	change(&m)
	return m
}

func numbered(n int) brokers.Headers { return alike(n, brokers.Header{Value: "7"}) }

// alike are headers that differ in their names.
func alike(n int, h brokers.Header) brokers.Headers {
	all := make(brokers.Headers, n)
	for i := range all {
		all[i] = h
		all[i].Name = fmt.Sprintf("h%02d", i)
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	const plain, sealed = false, true
	large := brokers.Header{Value: strings.Repeat("x", movedRoom)}
	for name, test := range map[string]struct {
		message brokers.Message
		sealed  bool
	}{
		"plain":                      {sample(), plain},
		"no headers":                 {with(func(m *brokers.Message) { m.Headers = nil }), plain},
		"no key":                     {with(func(m *brokers.Message) { m.Key = "" }), plain},
		"the key is the ID":          {with(func(m *brokers.Message) { m.Key = m.ID }), plain},
		"a long key":                 {with(func(m *brokers.Message) { m.Key = strings.Repeat("k", 129) }), plain},
		"a key with spaces":          {with(func(m *brokers.Message) { m.Key = "Jürgen  Müller" }), plain},
		"a key like a hashed one":    {with(func(m *brokers.Message) { m.Key = hashed("x") }), plain},
		"a key of bytes":             {with(func(m *brokers.Message) { m.Key = "\x00\xff" }), sealed},
		"a key beyond a header":      {with(func(m *brokers.Message) { m.Key = strings.Repeat("k", 2000) }), sealed},
		"a long ID":                  {with(func(m *brokers.Message) { m.ID, m.Key = strings.Repeat("i", 300), "" }), plain},
		"an empty body":              {with(func(m *brokers.Message) { m.Body = []byte{} }), sealed},
		"a body of bytes":            {with(func(m *brokers.Message) { m.Body = []byte{0, 1, 0xfe, 0xff} }), sealed},
		"a body with a control":      {with(func(m *brokers.Message) { m.Body = []byte("a\x0bb\x1f\"\\\u2028") }), sealed},
		"a body with a noncharacter": {with(func(m *brokers.Message) { m.Body = []byte("a\uffffb\ufffe\ufffd") }), sealed},
		"a body with the mark":       {with(func(m *brokers.Message) { m.Body = []byte("base64:AAAA\x00") }), sealed},
		"a body of mostly controls":  {with(func(m *brokers.Message) { m.Body = bytes.Repeat([]byte{0}, 1000) }), sealed},
		"a body like an envelope":    {with(func(m *brokers.Message) { m.Body = []byte(`{"redrive":{"v":1,"body":"not me"}}`) }), plain},
		"tabs and lines, all planes": {with(func(m *brokers.Message) { m.Body = []byte("a\t\r\n\u007f\u0085\U0010ffff") }), plain},
		"nine headers":               {with(func(m *brokers.Message) { m.Headers = numbered(9) }), plain},
		"ten headers":                {with(func(m *brokers.Message) { m.Headers = numbered(10) }), plain},
		"eleven headers":             {with(func(m *brokers.Message) { m.Headers = numbered(11) }), sealed},
		"ten headers of bytes": {with(func(m *brokers.Message) {
			m.Headers = alike(10, brokers.Header{Type: "Binary.x", Value: "\xff\"\uffff"})
		}), plain},
		"ten headers, nine of them large": {with(func(m *brokers.Message) {
			m.Headers = append(brokers.Headers{{Name: "a", Value: "1"}}, alike(9, large)...)
		}), plain},
		"ten large headers":            {with(func(m *brokers.Message) { m.Headers = alike(10, large) }), sealed},
		"a trace header beside ten":    {with(func(m *brokers.Message) { m.Headers = append(numbered(10), trace) }), plain},
		"a dead letter of ten headers": {with(func(m *brokers.Message) { m.Headers = append(numbered(10), deadLetter(9)...) }), plain},
		"a repeated name": {with(func(m *brokers.Message) {
			m.Headers = brokers.Headers{{Name: "b", Value: "1"}, {Name: "a", Value: "2"}, {Name: "b", Value: "3"}}
		}), sealed},
		"an empty value":       {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "b"}} }), sealed},
		"an empty name":        {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Value: "b"}} }), sealed},
		"a name with a space":  {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a b", Value: "1"}} }), sealed},
		"a name of Amazon's":   {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "Amazon.x", Value: "1"}} }), sealed},
		"a name with two dots": {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a..b", Value: "1"}} }), sealed},
		"a long name":          {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: strings.Repeat("n", 257), Value: "1"}} }), sealed},
		"a value of bytes":     {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a", Value: "\xff\x00"}} }), sealed},
		"a binary value":       {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a", Value: "\xff\x00", Type: "Binary"}} }), plain},
		"types with labels": {with(func(m *brokers.Message) {
			m.Headers = brokers.Headers{{Name: "a", Value: "x", Type: "Binary.gif"}, {Name: "b", Value: "-1.5", Type: "Number.float"}, {Name: "c", Value: "{}", Type: "String.json"}}
		}), plain},
		"a type of another broker":     {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a", Value: "1", Type: "int64"}} }), sealed},
		"a bad label":                  {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a", Value: "1", Type: "String."}} }), sealed},
		"a number that SQS would trim": {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a", Value: "007", Type: "Number"}} }), sealed},
		"no number":                    {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "a", Value: "one", Type: "Number"}} }), sealed},
		"a trace header":               {with(func(m *brokers.Message) { m.Headers = append(numbered(9), trace) }), plain},
		"two trace headers":            {with(func(m *brokers.Message) { m.Headers = brokers.Headers{trace, trace} }), sealed},
		"a bad trace header": {with(func(m *brokers.Message) {
			m.Headers = brokers.Headers{{Name: "AWSTraceHeader", Value: "x y", Type: "system"}}
		}), sealed},
		"another system attribute": {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "x", Value: "1", Type: "system"}} }), sealed},
		"an unknown name of ours":  {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "redrive-own", Value: "1"}} }), plain},
		"a dead letter":            {with(func(m *brokers.Message) { m.Headers = append(numbered(9), deadLetter(9)...) }), plain},
		"a dead letter of bytes":   {with(func(m *brokers.Message) { m.Headers = brokers.Headers{{Name: "redrive-dlq-reason", Value: "\xff"}} }), sealed},
		"a dead letter with a \\uffff": {with(func(m *brokers.Message) {
			m.Headers = brokers.Headers{{Name: "redrive-error-message", Value: "\uffff\\u"}}
		}), plain},
		"a dead letter of many parts": {with(func(m *brokers.Message) { m.Headers = deadLetter(100) }), sealed},
		"a dead letter of long parts": {with(func(m *brokers.Message) {
			m.Headers = append(brokers.Headers{{Name: "redrive-error-stack", Value: strings.Repeat("\x01", 20<<10)}}, deadLetter(9)...)
		}), sealed},
	} {
		for _, fifo := range []bool{false, true} {
			for _, meta := range []*brokers.Meta{nil, {Attempt: 3, DueAt: now.Add(time.Minute), Class: "transient", Delay: time.Minute, History: []brokers.Failure{{Attempt: 3}}}} {
				t.Run(fmt.Sprintf("%s/fifo=%t,copy=%t", name, fifo, meta != nil), func(t *testing.T) {
					want := test.message
					want.Topic = orders(fifo).topic
					got := roundTrip(t, want, meta, fifo)
					if out, _ := compose(want, meta, fifo, 0, 0); strings.HasPrefix(*out.entry.MessageBody, `{"redrive":{"v":1,`) != (test.sealed || name == "a body like an envelope") {
						t.Errorf("the body is %.120q, want an envelope: %t", *out.entry.MessageBody, test.sealed)
					}
					compareMessages(t, got.message, want)
					// An envelope tells whose it is; on FIFO queues a copy starts over.
					if got.err != nil || got.stored != (!fifo && (meta != nil || test.sealed)) || got.receives != 2 || got.handle != "handle" {
						t.Errorf("record = %+v", got)
					}
					if fifo && (got.meta.Attempt != 0 || !got.meta.DueAt.IsZero() || got.meta.Class != "" || got.meta.Delay != 0) {
						t.Errorf("meta = %+v, want no progress: on FIFO queues no retry is a copy", got.meta)
					}
					if meta != nil && len(got.meta.History) != 1 {
						t.Errorf("history = %+v, want that of the copy", got.meta.History)
					}
					if meta != nil && !fifo && (got.meta.Attempt != 3 || !got.meta.DueAt.Equal(meta.DueAt) || got.meta.Class != "transient") {
						t.Errorf("meta = %+v, want %+v", got.meta, *meta)
					}
				})
			}
		}
	}
}

// deadLetter has n headers of a dead letter.
func deadLetter(n int) brokers.Headers {
	h := brokers.Headers{{Name: "redrive-dlq-v", Value: "1"}, {Name: "redrive-dlq-reason", Value: "exhausted"}, {Name: "redrive-error-message", Value: "no \"stock\"\nleft"}}
	for i := len(h); i < n; i++ {
		h = append(h, brokers.Header{Name: "redrive-dlq-origin-" + strconv.Itoa(i), Value: "x"})
	}
	return h
}

func compareMessages(t testing.TB, got, want brokers.Message) {
	t.Helper()
	if got.ID != want.ID || got.Topic != want.Topic || got.Key != want.Key || !got.PublishedAt.Equal(want.PublishedAt) {
		t.Errorf("got ID %q, topic %q, key %q, published %v, want %q, %q, %q, %v",
			got.ID, got.Topic, got.Key, got.PublishedAt, want.ID, want.Topic, want.Key, want.PublishedAt)
	}
	if !bytes.Equal(got.Body, want.Body) {
		t.Errorf("body = %.200q, want %.200q", got.Body, want.Body)
	}
	if len(got.Headers)+len(want.Headers) > 0 && !reflect.DeepEqual(got.Headers, want.Headers) {
		t.Errorf("headers = %.400q\nwant      %.400q", got.Headers, want.Headers)
	}
}

func TestComposeSystemFields(t *testing.T) {
	copied := &brokers.Meta{Attempt: 1}
	for _, test := range []struct {
		name  string
		fifo  bool
		meta  *brokers.Meta
		key   string
		delay time.Duration
		want  int32
		group string
	}{
		{name: "publish", key: "k", group: "k"},
		{name: "publish without a key"},
		{name: "a delay is rounded up", meta: copied, delay: 1500 * time.Millisecond, want: 2},
		{name: "a tiny delay", meta: copied, delay: 1, want: 1},
		{name: "whole seconds", meta: copied, delay: 3 * time.Second, want: 3},
		{name: "a long delay", meta: copied, delay: 40 * time.Minute, want: 900},
		{name: "no delay", meta: copied, delay: -time.Second},
		{name: "the longest", meta: copied, delay: 1<<63 - 1, want: 900},
		{name: "FIFO has no delay", fifo: true, meta: copied, delay: 3 * time.Second, group: "order-1"},
		{name: "FIFO with a key", fifo: true, key: "k", group: "k"},
		{name: "a key that SQS does not take", key: "ä", group: hashed("ä")},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := sample()
			m.Key = test.key
			out, err := compose(m, test.meta, test.fifo, 0, test.delay)
			if err != nil {
				t.Fatal(err)
			}
			e := out.entry
			if e.DelaySeconds != test.want || aws.ToString(e.MessageGroupId) != test.group {
				t.Errorf("delay %d, group %q, want %d and %q", e.DelaySeconds, aws.ToString(e.MessageGroupId), test.want, test.group)
			}
		})
	}
}

func TestParseForeign(t *testing.T) {
	m := types.Message{
		Body: aws.String("hello"), MessageId: aws.String("m-1"), ReceiptHandle: aws.String("h-1"),
		Attributes: map[string]string{"ApproximateReceiveCount": "1", "SentTimestamp": "1777863600123", "MessageGroupId": "tenant", "AWSTraceHeader": trace.Value},
		MessageAttributes: map[string]types.MessageAttributeValue{
			"b": {DataType: aws.String("String"), StringValue: aws.String("text")},
			"a": {DataType: aws.String("Binary.png"), BinaryValue: []byte{1}},
		},
	}
	got := parse(m, orders(false), limits())
	want := record{
		message: brokers.Message{
			ID: "m-1", Topic: "orders", Key: "tenant", Body: []byte("hello"), PublishedAt: time.UnixMilli(1777863600123).UTC(),
			Headers: brokers.Headers{{Name: "a", Value: "\x01", Type: "Binary.png"}, {Name: "b", Value: "text"}, trace},
		},
		meta:   brokers.Meta{Origin: brokers.Headers{{Name: "queue", Value: "orders"}, {Name: "message-id", Value: "m-1"}}},
		handle: "h-1", id: "m-1", group: "tenant", receives: 1, sent: time.UnixMilli(1777863600123).UTC(),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	copied := roundTrip(t, got.message, &brokers.Meta{Attempt: 1, Origin: got.meta.Origin}, false)
	compareMessages(t, copied.message, want.message)
	if !reflect.DeepEqual(copied.meta.Origin, want.meta.Origin) {
		t.Errorf("a copy has the origin %v, want that of the original, %v", copied.meta.Origin, want.meta.Origin)
	}
}

// What SQS has dead-lettered by itself says so in attributes of the system alone.
func TestParseDeadLettered(t *testing.T) {
	m := types.Message{
		Body: aws.String("hello"), MessageId: aws.String("m-1"), ReceiptHandle: aws.String("h-1"),
		Attributes: map[string]string{
			"ApproximateReceiveCount": "8", "SentTimestamp": "1701176278493", "ApproximateFirstReceiveTimestamp": "1701176294398",
		},
	}
	place := brokers.Headers{{Name: "queue", Value: "orders"}, {Name: "message-id", Value: "m-1"}}
	if got := parse(m, orders(false), limits()).meta.Origin; !reflect.DeepEqual(got, place) {
		t.Errorf("a message that nothing has moved has the origin %v, want %v", got, place)
	}
	m.Attributes["DeadLetterQueueSourceArn"] = "arn:aws:sqs:us-west-2:123456789012:example"
	want := append(place,
		brokers.Header{Name: "source-arn", Value: "arn:aws:sqs:us-west-2:123456789012:example"},
		brokers.Header{Name: "receive-count", Value: "8"},
		brokers.Header{Name: "first-received-at", Value: "1701176294398"})
	if got := parse(m, orders(false), limits()).meta.Origin; !reflect.DeepEqual(got, want) {
		t.Errorf("origin %v\nwant   %v", got, want)
	}
}

func TestParseDamaged(t *testing.T) {
	out, err := compose(sample(), nil, false, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := transmit(t, out, 1<<20)
	m.Body = aws.String(*m.Body + "!")
	got := parse(m, orders(false), limits())
	if !errors.Is(got.err, errChecksum) || got.handle != "handle" {
		t.Errorf("a damaged body: err = %v, handle %q, want errChecksum and the handle to give it back by", got.err, got.handle)
	}
	future := types.Message{
		Body: aws.String(`{"redrive":{"v":2,"parts":[]}}`), MessageId: aws.String("m-1"),
		MessageAttributes: map[string]types.MessageAttributeValue{wire.Packed: {StringValue: aws.String(`{"sqs":"envelope"}`)}},
	}
	for body, want := range map[string]error{
		*future.Body: errNewer, "hello": errBroken, `{}`: errBroken, `{"redrive":{"v":1}}`: errBroken, `{"redrive":{"v":1,"body":"base64:%"}}`: errBroken,
	} {
		ours, anybodys := future, future
		ours.Body, anybodys.Body = &body, &body
		if got := parse(anybodys, orders(false), limits()); got.err != nil || got.unreadable != nil || string(got.message.Body) != body {
			t.Errorf("an envelope that nobody says to be of this queue, %q: unreadable = %v, %v, body %q, want it as it is", body, got.unreadable, got.err, got.message.Body)
		}
		ours.MessageAttributes = map[string]types.MessageAttributeValue{wire.Packed: {StringValue: aws.String(`{"sqs":"envelope","topic":"orders"}`)}}
		if got := parse(ours, orders(false), limits()); !errors.Is(got.unreadable, want) || string(got.message.Body) != body || got.stored {
			t.Errorf("an envelope of this queue, %q: unreadable = %v, body %q, want %v and what there is", body, got.unreadable, got.message.Body, want)
		}
		if got := parse(ours, &queue{topic: "orders-dead"}, limits()); got.unreadable != nil {
			t.Errorf("in another queue it is %v, want a body as it is", got.unreadable)
		}
	}
}

func TestProgressIsReadForTheSameQueueOnly(t *testing.T) {
	out, err := compose(sample(), &brokers.Meta{Attempt: 3, RedriveCount: 2}, false, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := transmit(t, out, 1<<20)
	for topic, want := range map[string]int{"orders": 3, "https://sqs.eu-west-1.amazonaws.com/1/orders": 3, "orders-dead": 0} {
		got := parse(m, &queue{topic: topic}, limits())
		if got.meta.Attempt != want || got.stored != (want > 0) || got.meta.RedriveCount != 2 || got.message.Topic != topic {
			t.Errorf("from %q: attempt %d, stored %t, redriven %d, topic %q; want attempt %d",
				topic, got.meta.Attempt, got.stored, got.meta.RedriveCount, got.message.Topic, want)
		}
	}
}

// TestSignedProgress is believed where one of the keys has signed it for this
// queue, and only there.
func TestSignedProgress(t *testing.T) {
	other := [][]byte{bytes.Repeat([]byte{2}, 32)}
	queueWith := func(topic string, keys ...[]byte) *queue {
		seal, err := adapter.Secret(keys).Seal()
		if err != nil {
			t.Fatal(err)
		}
		return &queue{topic: topic, seal: seal}
	}
	meta := &brokers.Meta{Attempt: 3, DueAt: now.Add(time.Minute), Class: "transient", Origin: brokers.Headers{{Name: "queue", Value: "orders"}}}
	signed, plain := queueWith("orders", secret...), queueWith("orders")
	for name, test := range map[string]struct {
		from, by *queue
		change   func(*types.Message)
		want     int
	}{
		"signed":                    {from: signed, by: signed, want: 3},
		"by a reader without a key": {from: signed, by: plain, want: 3},
		"before there was a key":    {from: plain, by: signed},
		"another key":               {from: signed, by: queueWith("orders", other...)},
		"another queue":             {from: signed, by: queueWith("payments", secret...)},
		"another queue, renamed": {from: signed, by: queueWith("payments", secret...), change: func(m *types.Message) {
			*m.MessageAttributes[wire.Packed].StringValue = strings.Replace(*m.MessageAttributes[wire.Packed].StringValue, `"topic":"orders"`, `"topic":"payments"`, 1)
		}},
		"another attempt": {from: signed, by: signed, change: func(m *types.Message) {
			*m.MessageAttributes[wire.Packed].StringValue = strings.Replace(*m.MessageAttributes[wire.Packed].StringValue, `"attempt":"3"`, `"attempt":"9"`, 1)
		}},
		"an attempt beside": {from: signed, by: signed, change: func(m *types.Message) {
			m.MessageAttributes["redrive-origin-x"] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String("9")}
		}},
	} {
		for _, m := range []brokers.Message{sample(), with(func(m *brokers.Message) { m.Body = []byte{0, 1} }), with(func(m *brokers.Message) { m.Headers = numbered(12) })} {
			out, err := test.from.compose(m, meta, 0)
			if err != nil {
				t.Fatal(err)
			}
			received := transmit(t, out, 1<<20)
			if test.change != nil {
				test.change(&received)
			}
			got := parse(received, test.by, limits())
			if got.meta.Attempt != test.want || got.meta.DueAt.IsZero() != (test.want == 0) || got.stored != (test.want > 0) || got.unreadable != nil {
				t.Errorf("%s: attempt %d due at %v, want %d", name, got.meta.Attempt, got.meta.DueAt, test.want)
			}
			if got.message.ID != m.ID || !bytes.Equal(got.message.Body, m.Body) || got.message.Headers.Get("redrive-signature") != "" {
				t.Errorf("%s: the message is %+v, want %+v", name, got.message, m)
			}
		}
	}
	for body := range 400 { // whatever has to be left out for it
		m := with(func(m *brokers.Message) { m.Headers, m.Body = nil, bytes.Repeat([]byte("x"), 3700+body) })
		tight := *signed
		tight.limit = 4096
		if out, err := tight.compose(m, benchMeta(), 0); err == nil {
			if got := parse(transmit(t, out, tight.limit), &tight, limits()); got.meta.Attempt != 2 {
				t.Fatalf("with %d bytes it is not believed: %s", len(m.Body), *out.entry.MessageAttributes[wire.Packed].StringValue)
			}
		}
	}
}

func TestComposeSheds(t *testing.T) {
	var history []brokers.Failure
	for i := range 10 {
		history = append(history, brokers.Failure{Attempt: i + 1, At: now.Add(-time.Minute), Class: "transient", Fingerprint: strings.Repeat("f", 40), Delay: time.Second})
	}
	meta := &brokers.Meta{Attempt: 10, DueAt: now, History: history, Origin: brokers.Headers{{Name: "queue", Value: "orders"}}}
	m := with(func(m *brokers.Message) { m.Headers = nil })
	full, err := compose(m, meta, false, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	letter := with(func(m *brokers.Message) {
		m.Headers = append(deadLetter(5), brokers.Header{Name: "redrive-error-stack", Value: strings.Repeat("\"main.go\":1\n", 100)}, brokers.Header{Name: "redrive-dlq-truncated", Value: "rule"})
	})
	long := with(func(m *brokers.Message) {
		m.Headers = brokers.Headers{{Name: "redrive-dlq-v", Value: "1"}, {Name: "redrive-error-message", Value: strings.Repeat("declined ", 200)}}
	})
	for _, test := range []struct {
		name    string
		m       brokers.Message
		meta    *brokers.Meta
		limit   int
		check   func(record) bool
		refused bool
	}{
		{name: "fits", m: m, meta: meta, limit: full.size, check: func(r record) bool { return len(r.meta.History) == 10 }},
		{name: "without history", m: m, meta: meta, limit: full.size - 1, check: func(r record) bool {
			return r.meta.History == nil && r.meta.Origin.Get("queue") == "orders" && r.meta.Attempt == 10 && r.meta.DueAt.Equal(now)
		}},
		{name: "without origin", m: m, meta: meta, limit: 200, check: func(r record) bool {
			return r.meta.History == nil && r.meta.Attempt == 10 && r.message.ID == m.ID
		}},
		{name: "too small", m: m, meta: meta, limit: 100, refused: true},
		{name: "a stack is cut", m: letter, limit: 1500, check: func(r record) bool {
			stack := r.message.Headers.Get("redrive-error-stack")
			return len(stack) > 400 && len(stack) < 1200 && r.message.Headers.Get("redrive-dlq-truncated") == "rule,error-stack"
		}},
		{name: "a stack goes", m: letter, limit: 330, check: func(r record) bool {
			_, ok := r.message.Headers.Lookup("redrive-error-stack")
			return !ok && r.message.Headers.Get("redrive-dlq-truncated") == "rule,error-stack" && r.message.Headers.Get("redrive-dlq-reason") == "exhausted"
		}},
		{name: "an error text is cut", m: long, limit: 1000, check: func(r record) bool {
			text := r.message.Headers.Get("redrive-error-message")
			return len(text) > 400 && len(text) < 1000 && r.message.Headers.Get("redrive-dlq-truncated") == "error-message"
		}},
		{name: "a body is never cut", m: with(func(m *brokers.Message) { m.Body = bytes.Repeat([]byte("x"), 1<<20) }), limit: 1 << 21, refused: true},
		{name: "too many headers", m: with(func(m *brokers.Message) { m.Headers = numbered(1001) }), refused: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := compose(test.m, test.meta, false, test.limit, 0)
			if test.refused {
				if !errors.Is(err, brokers.ErrRefused) {
					t.Errorf("err = %v, want ErrRefused", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := parse(transmit(t, out, test.limit), orders(false), limits())
			if !bytes.Equal(got.message.Body, test.m.Body) || !test.check(got) {
				t.Errorf("limit %d, got %+v", test.limit, got)
			}
		})
	}
}

func TestMessageLimit(t *testing.T) {
	for _, limit := range []int{0, 1 << 20, 256 << 10, 2048} {
		most := (&queue{limit: limit}).messageLimit()
		m := with(func(m *brokers.Message) { m.ID, m.Key = strings.Repeat("i", 60), strings.Repeat("k", 128) })
		m.Body = bytes.Repeat([]byte{0xff}, most-adapter.Size(m.Headers))
		for _, meta := range []*brokers.Meta{nil, benchMeta()} {
			if _, err := compose(m, meta, true, limit, 0); err != nil {
				t.Errorf("limit %d, copy %t: %d bytes that are no text are refused: %v", limit, meta != nil, most, err)
			}
		}
		m.Body = bytes.Repeat([]byte("x"), max(limit, 1<<11))
		if _, err := compose(m, nil, true, max(limit, 1<<11), 0); !errors.Is(err, brokers.ErrRefused) {
			t.Errorf("limit %d: a body that leaves no room: %v, want ErrRefused", limit, err)
		}
	}
	if got := (&queue{limit: 1024}).messageLimit(); got != 1 {
		t.Errorf("of the smallest queue: %d, want 1", got)
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("body"), "key", "id", "name", "value", "", "other", "1", "Number", false, true)
	f.Add([]byte{0xff}, "\x00", "", "a", "", "Binary", "a", "x", "String.y", true, false)
	f.Add([]byte("base64:"), "base64:\xff", "i d", "redrive-error-stack", "\uffff", "", "AWSTraceHeader", "Root=1", "system", true, true)
	f.Fuzz(func(t *testing.T, body []byte, key, id, name1, value1, type1, name2, value2, type2 string, fifo, copied bool) {
		m := brokers.Message{
			ID: id, Key: key, Topic: orders(fifo).topic, Body: body, PublishedAt: published,
			Headers: brokers.Headers{{Name: name1, Value: value1, Type: type1}, {Name: name2, Value: value2, Type: type2}},
		}
		var meta *brokers.Meta
		if copied {
			meta = &brokers.Meta{Attempt: 4, DueAt: now}
		}
		out, err := compose(m, meta, fifo, 0, 0)
		if err != nil {
			if !errors.Is(err, brokers.ErrRefused) || len(body)+len(key)+len(value1)+len(value2) < 1<<16 {
				t.Fatalf("compose: %v", err)
			}
			return
		}
		got := parse(transmit(t, out, 1<<20), orders(fifo), limits())
		want := m
		want.Headers = normal(m.Headers)
		if got.message.ID == got.id {
			want.ID = got.id // Decode takes no such ID
			if len(wire.EncodeIdentity(brokers.Message{ID: id})) > 0 {
				t.Errorf("the ID %q got lost", id)
			}
		}
		compareMessages(t, got.message, want)
		if copied && !fifo && got.meta.Attempt != 4 {
			t.Errorf("meta = %+v", got.meta)
		}
	})
}

// normal is what comes back of headers: attributes have no order, what the
// framework carries is gone, and what it notes comes last.
func normal(h brokers.Headers) brokers.Headers {
	var l letter
	l.split(wire.EncodeIdentity(brokers.Message{Headers: h}))
	l.fit("x")
	var out brokers.Headers
	if l.sealed != nil {
		out = append(out, l.sealed.headers...)
	} else {
		for _, name := range slices.Sorted(maps.Keys(l.attributes)) {
			out = append(out, headerOf(name, l.attributes[name]))
		}
		out = append(out, l.moved...)
		slices.SortStableFunc(out, func(a, b brokers.Header) int { return strings.Compare(a.Name, b.Name) })
	}
	if l.trace != "" {
		at := 0
		if l.sealed == nil {
			at = len(out)
		}
		out = slices.Insert(out, at, trace)
		out[at].Value = l.trace
	}
	notes, _ := wire.Unpack(wire.Pack(l.notes))
	for _, note := range notes {
		if note.Name != "redrive-idempotency-key" && note.Name != "redrive-count" {
			out = append(out, note)
		}
	}
	return out
}

func FuzzParse(f *testing.F) {
	f.Add("body", `{"sqs":"envelope,keyless","id":"x","topic":"orders","attempt":"3"}`, "name", "value", "3", "123", "group")
	f.Add("body", `{"sqs":"moved","moved":[["redrive-attempt","3"],["n","base64:/w==","Binary"]],"id":"x"}`, "name", "value", "3", "123", "group")
	f.Add("clocks", `{"sqs":"keyless","id":"x","topic":"orders","attempt":"3","due-at":"9999999999999"}`, "name", "value", "-1", "9999999999999", "group")
	f.Add(`{"redrive":{"v":1,"headers":[["redrive-attempt","9"]],"body":"x"}}`, `{"sqs":"envelope"`, "redrive-meta", "", "x", "-1", "")
	f.Fuzz(func(t *testing.T, body, packed, name, value, receives, sent, group string) {
		m := types.Message{
			Body: &body, MessageId: aws.String("m"),
			Attributes: map[string]string{"ApproximateReceiveCount": receives, "SentTimestamp": sent, "MessageGroupId": group},
			MessageAttributes: map[string]types.MessageAttributeValue{
				name:        {DataType: aws.String("String"), StringValue: &value},
				wire.Packed: {DataType: aws.String("String"), StringValue: &packed},
			},
		}
		got := parse(m, orders(false), limits())
		if got.err != nil {
			return
		}
		if got.message.ID == "" || got.message.Topic != "orders" || got.receives < 1 || got.message.PublishedAt.After(now) ||
			got.meta.DueAt.After(now.Add(time.Hour)) || got.meta.Origin == nil {
			t.Errorf("what nobody may write got through: %+v", got)
		}
		if !got.stored && got.meta.Attempt != 0 {
			t.Errorf("progress without a copy: %+v", got)
		}
		if flags, _ := unpack(packed); !slices.Contains(flags, flagEnvelope) && string(got.message.Body) != body {
			t.Errorf("body = %q, want %q", got.message.Body, body)
		}
		for _, h := range got.message.Headers {
			if h.Name == "redrive-attempt" || h.Name == wire.Packed || h.Name == "redrive-id" {
				t.Errorf("the header %q got through", h.Name)
			}
		}
	})
}

func benchMeta() *brokers.Meta {
	return &brokers.Meta{
		Attempt: 2, FirstFailedAt: now.Add(-time.Minute), LastFailedAt: now, DueAt: now.Add(time.Second), Delay: time.Second, Class: "transient",
		History: []brokers.Failure{{Attempt: 1, At: now.Add(-time.Minute), Class: "transient", Fingerprint: "3f2a", Delay: time.Second}, {Attempt: 2, At: now, Class: "transient", Fingerprint: "3f2a", Delay: time.Second}},
		Origin:  brokers.Headers{{Name: "queue", Value: "orders"}, {Name: "message-id", Value: "4a4d0f2c-0000-4000-8000-000000000001"}},
	}
}
