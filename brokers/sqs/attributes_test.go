package sqs

import (
	"strings"
	"testing"
	"time"
)

func TestReadAttributes(t *testing.T) {
	got, err := readAttributes(map[string]string{
		"QueueArn": "arn:aws:sqs:eu-west-1:123456789012:orders.fifo", "FifoQueue": "true",
		"MessageRetentionPeriod": "345600", "VisibilityTimeout": "30", "DelaySeconds": "5", "MaximumMessageSize": "262144",
		"ApproximateNumberOfMessages": "7", "ApproximateNumberOfMessagesNotVisible": "8", "ApproximateNumberOfMessagesDelayed": "9",
		"RedrivePolicy":        `{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:dead.fifo","maxReceiveCount":40}`,
		"SqsManagedSseEnabled": "true",
	})
	want := attributes{
		arn: "arn:aws:sqs:eu-west-1:123456789012:orders.fifo", fifo: true, retention: 96 * time.Hour, visibility: 30 * time.Second,
		delay: 5 * time.Second, limit: 262144, visible: 7, inFlight: 8, delayed: 9,
		deadLetter: "arn:aws:sqs:eu-west-1:123456789012:dead.fifo", maxReceives: 40,
	}
	if err != nil || got != want {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if got, err := readAttributes(nil); err != nil || got != (attributes{}) {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
	if got, err := readAttributes(map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn","maxReceiveCount":"12"}`}); err != nil || got.maxReceives != 12 {
		t.Errorf("a count in quotes: %+v, %v", got, err)
	}
}

func TestReadAttributesRefuses(t *testing.T) {
	for name, value := range map[string]string{
		"MessageRetentionPeriod": "4 days",
		"VisibilityTimeout":      "-1",
		"MaximumMessageSize":     "99999999999999999999",
		"RedrivePolicy":          `{"deadLetterTargetArn":"arn","maxReceiveCount":"many"}`,
		"RedrivePolicy ":         "",
	} {
		_, err := readAttributes(map[string]string{strings.TrimSpace(name): value})
		if (value != "") != (err != nil && strings.Contains(err.Error(), strings.TrimSpace(name))) {
			t.Errorf("%s %q: %v, want an error that names it", name, value, err)
		}
	}
	if _, err := readAttributes(map[string]string{"RedrivePolicy": "{"}); err == nil {
		t.Error("a RedrivePolicy that is no JSON is taken")
	}
}

func FuzzReadAttributes(f *testing.F) {
	f.Add("30", `{"deadLetterTargetArn":"arn","maxReceiveCount":3}`)
	f.Add("", `{"deadLetterTargetArn":"arn"}`)
	f.Fuzz(func(t *testing.T, number, policy string) {
		a, err := readAttributes(map[string]string{"VisibilityTimeout": number, "RedrivePolicy": policy})
		if err == nil && (a.visibility < 0 || a.deadLetter == "" && a.maxReceives != 0) {
			t.Errorf("%q, %q: %+v", number, policy, a)
		}
	})
}
