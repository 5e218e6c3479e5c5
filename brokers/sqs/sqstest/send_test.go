package sqstest_test

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func stringAttribute(value string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: new("String"), StringValue: &value}
}

func milliseconds(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

func TestMessageComesBackAsItWasSent(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		body := "tab\t, newline\n, quote \", <&>, ä, \U0001F600 and \uFFFD"
		attributes := map[string]types.MessageAttributeValue{
			"text":    stringAttribute("a <b> \u2028"),
			"number":  {DataType: new("Number.int"), StringValue: new("-12.5e3")},
			"payload": {DataType: new("Binary.png"), BinaryValue: []byte{0, 255, 10}},
		}
		sent, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageAttributes: attributes})
		w.wantCode(err, "")
		m := w.one(url)
		if *m.Body != body || *m.MessageId != *sent.MessageId {
			w.Errorf("body %q of message %s, want %q of %s", *m.Body, *m.MessageId, body, *sent.MessageId)
		}
		if *m.MD5OfMessageAttributes != *sent.MD5OfMessageAttributes {
			w.Errorf("MD5 of attributes %s, when sent %s", *m.MD5OfMessageAttributes, *sent.MD5OfMessageAttributes)
		}
		if !reflect.DeepEqual(m.MessageAttributes, attributes) {
			w.Errorf("attributes came back as %v, want %v", m.MessageAttributes, attributes)
		}
	})
}

// The sums are those that AWS returns.
func TestMD5OfAttributes(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		for want, attributes := range map[string]map[string]types.MessageAttributeValue{
			"adb59cd4678ea5a855436b949cd07ab6": {"MyAttribute": stringAttribute("foobar")},
			"ae7155c6026991b6d54b11589678bf9c": {"Foo": stringAttribute("Bar")},
			"4c360f3fdafd970e05fae2f149d997f5": {"Help.Me": stringAttribute("Me"), "Hello": stringAttribute("There"), "General": stringAttribute("Kenobi")},
		} {
			out, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: new("a"), MessageAttributes: attributes})
			w.wantCode(err, "")
			if got := *out.MD5OfMessageAttributes; got != want {
				w.Errorf("MD5 of %v is %s, want %s", attributes, got, want)
			}
		}
	})
}

func TestSendIsRefused(t *testing.T) {
	const value, contents, lacking = "InvalidParameterValue", "InvalidMessageContents", "MissingParameter"
	of := func(kind, text string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: &kind, StringValue: &text}
	}
	many := func(n int) sqs.SendMessageInput {
		in := sqs.SendMessageInput{MessageBody: new("a"), MessageAttributes: map[string]types.MessageAttributeValue{}}
		for _, name := range numbered("a", n) {
			in.MessageAttributes[name] = stringAttribute("1")
		}
		return in
	}
	body := func(text string) sqs.SendMessageInput { return sqs.SendMessageInput{MessageBody: &text} }
	with := func(name string, value types.MessageAttributeValue) sqs.SendMessageInput {
		return sqs.SendMessageInput{MessageBody: new("a"), MessageAttributes: map[string]types.MessageAttributeValue{name: value}}
	}
	large := func(n int) sqs.SendMessageInput {
		in := with("ab", stringAttribute("c"))
		in.MessageBody = new(strings.Repeat("x", n))
		return in
	}
	id, group := new("1"), new("g")
	grouped := func(id, group *string) sqs.SendMessageInput {
		return sqs.SendMessageInput{MessageBody: new("a"), MessageGroupId: group, MessageDeduplicationId: id}
	}
	for name, c := range map[string]struct {
		in   sqs.SendMessageInput
		want string
	}{
		"FIFO":                      {grouped(id, group), ""},
		"FIFO, no group":            {grouped(id, nil), lacking},
		"FIFO, no ID":               {grouped(nil, group), value},
		"FIFO, empty ID":            {grouped(new(""), group), value},
		"FIFO, delay":               {sqs.SendMessageInput{MessageBody: new("a"), MessageGroupId: group, MessageDeduplicationId: id, DelaySeconds: 1}, value},
		"FIFO, group with space":    {grouped(id, new("a b")), value},
		"empty":                     {body(""), lacking},
		"NUL":                       {body("a\x00"), contents},
		"control character":         {body("a\x1b"), contents},
		"not a character":           {body("a\uffff"), contents},
		"largest":                   {body(strings.Repeat("x", 1<<20)), ""},
		"too large":                 {body(strings.Repeat("x", 1<<20+1)), value},
		"too large in bytes":        {body(strings.Repeat("ä", 1<<19) + "x"), value},
		"too large with attribute":  {large(1<<20 - 8), value},
		"largest with attribute":    {large(1<<20 - 9), ""},
		"delay":                     {sqs.SendMessageInput{MessageBody: new("a"), DelaySeconds: 901}, value},
		"negative delay":            {sqs.SendMessageInput{MessageBody: new("a"), DelaySeconds: -1}, value},
		"10 attributes":             {many(10), ""},
		"11 attributes":             {many(11), value},
		"empty attribute":           {with("a", stringAttribute("")), value},
		"attribute with NUL":        {with("a", stringAttribute("\x00")), value},
		"attribute name":            {with("a b", stringAttribute("1")), value},
		"empty name":                {with("", stringAttribute("1")), value},
		"long name":                 {with(strings.Repeat("n", 257), stringAttribute("1")), value},
		"name with period first":    {with(".a", stringAttribute("1")), value},
		"name with two periods":     {with("a..b", stringAttribute("1")), value},
		"reserved name":             {with("aws.a", stringAttribute("1")), value},
		"other reserved name":       {with("Amazon.a", stringAttribute("1")), value},
		"unknown type":              {with("a", of("Text", "1")), value},
		"custom type":               {with("a", of("String.json", "{}")), ""},
		"long type":                 {with("a", of("String."+strings.Repeat("x", 250), "1")), value},
		"number":                    {with("a", of("Number", "12")), ""},
		"no number":                 {with("a", of("Number", "twelve")), value},
		"hexadecimal":               {with("a", of("Number", "0x12")), value},
		"text in binary":            {with("a", of("Binary", "1")), value},
		"list":                      {with("a", types.MessageAttributeValue{DataType: new("String"), StringListValues: []string{"1"}}), value},
		"group of a standard queue": {sqs.SendMessageInput{MessageBody: new("a"), MessageGroupId: new("tenant")}, ""},
		"empty group":               {sqs.SendMessageInput{MessageBody: new("a"), MessageGroupId: new("")}, value},
		"group with space":          {sqs.SendMessageInput{MessageBody: new("a"), MessageGroupId: new("a b")}, value},
		"long group":                {sqs.SendMessageInput{MessageBody: new("a"), MessageGroupId: new(strings.Repeat("g", 129))}, value},
		"deduplication ID":          {sqs.SendMessageInput{MessageBody: new("a"), MessageDeduplicationId: new("1")}, value},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, sqstest.Options{}, func(w *world) {
				queue, url := "orders", w.queue("orders")
				if strings.HasPrefix(name, "FIFO") {
					queue, url = "orders.fifo", w.fifo("orders.fifo")
				}
				c.in.QueueUrl = &url
				_, err := w.client.SendMessage(w.Context(), &c.in)
				w.wantCode(err, c.want)
				if want := c.want == ""; (w.server.Queue(queue).Sent == 1) != want {
					w.Errorf("stored: %t, want %t", !want, want)
				}
			})
		})
	}
}

func TestSystemAttributeIsRefused(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		for name, attribute := range map[string]types.MessageSystemAttributeValue{
			"AWSTraceHeader": {DataType: new("Binary"), BinaryValue: []byte("x")},
			"Other":          {DataType: new("String"), StringValue: new("x")},
		} {
			_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{
				QueueUrl: &url, MessageBody: new("a"),
				MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{name: attribute},
			})
			w.wantCode(err, "InvalidParameterValue")
		}
	})
}

func TestBatchIsRefused(t *testing.T) {
	const legacy = "AWS.SimpleQueueService."
	large := entries("1", "2")
	large[0].MessageBody = new(strings.Repeat("x", 1<<20))
	grouped := entries("1", "2")
	grouped[0].MessageGroupId = new("g")
	for i := range grouped {
		grouped[i].MessageDeduplicationId = grouped[i].Id
	}
	for name, c := range map[string]struct {
		entries []types.SendMessageBatchRequestEntry
		want    string
	}{
		"empty":     {entries(), legacy + "EmptyBatchRequest"},
		"ten":       {entries(numbered("m", 10)...), ""},
		"eleven":    {entries(numbered("m", 11)...), legacy + "TooManyEntriesInBatchRequest"},
		"same id":   {entries("a", "a"), legacy + "BatchEntryIdsNotDistinct"},
		"bad id":    {entries("a b"), legacy + "InvalidBatchEntryId"},
		"long id":   {entries(strings.Repeat("i", 81)), legacy + "InvalidBatchEntryId"},
		"too large": {large, legacy + "BatchRequestTooLong"},

		"FIFO, one without a group": {grouped, "InvalidParameterValue"},
	} {
		t.Run(name, func(t *testing.T) {
			onOrders(t, func(w *world, url string) {
				if name == "FIFO, one without a group" {
					url = w.fifo("orders.fifo")
				}
				_, err := w.sendBatch(url, c.entries...)
				w.wantCode(err, c.want)
				if stored := w.server.Queue("orders").Sent + w.server.Queue("orders.fifo").Sent; c.want != "" && stored != 0 {
					w.Errorf("a refused batch stored %d messages", stored)
				}
			})
		})
	}
}

func TestBatchesFailByEntry(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "MaximumMessageSize", "1024")
		batch := entries("good", "nul", "large", "late")
		batch[1].MessageBody, batch[2].MessageBody, batch[3].DelaySeconds = new("\x00"), new(strings.Repeat("x", 1025)), 1
		sent, err := w.sendBatch(url, batch...)
		w.wantCode(err, "")
		w.wantFailed(sent.Failed, "nul InvalidMessageContents", "large InvalidParameterValue")
		if len(sent.Successful) != 2 || *sent.Successful[0].Id != "good" || *sent.Successful[1].Id != "late" {
			w.Errorf("Successful = %v, want good and late", sent.Successful)
		}
		m := w.one(url)
		changed, err := w.client.ChangeMessageVisibilityBatch(w.Context(), &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: new("bad"), ReceiptHandle: new("garbage"), VisibilityTimeout: 1},
			{Id: new("long"), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 43201},
			{Id: new("good"), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 60},
		}})
		w.wantCode(err, "")
		w.wantFailed(changed.Failed, "bad ReceiptHandleIsInvalid", "long InvalidParameterValue")
		deleted, err := w.client.DeleteMessageBatch(w.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: []types.DeleteMessageBatchRequestEntry{
			{Id: new("bad"), ReceiptHandle: new("garbage")},
			{Id: new("good"), ReceiptHandle: m.ReceiptHandle},
		}})
		w.wantCode(err, "")
		w.wantFailed(deleted.Failed, "bad ReceiptHandleIsInvalid")
		if len(changed.Successful) != 1 || len(deleted.Successful) != 1 {
			w.Errorf("%d changed and %d deleted, want 1 and 1", len(changed.Successful), len(deleted.Successful))
		}
		w.wantCounts("orders", 0, 0, 1)
	})
}

// wantFailed compares failed entries, as "id code", all of them the sender's fault.
func (w *world) wantFailed(failed []types.BatchResultErrorEntry, want ...string) {
	w.Helper()
	got := []string{}
	for _, f := range failed {
		got = append(got, *f.Id+" "+*f.Code)
		if !f.SenderFault || *f.Message == "" {
			w.Errorf("entry %s: SenderFault %t, message %q", *f.Id, f.SenderFault, *f.Message)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("failed entries %q, want %q", got, want)
	}
}
