package sqs

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
)

func TestReadAttributes(t *testing.T) {
	const policy = `{"deadLetterTargetArn":"arn:dead","maxReceiveCount":40}`
	got, err := readAttributes(map[string]string{
		"QueueArn": "arn:orders", "MessageRetentionPeriod": "345600", "MaximumMessageSize": "262144",
		"ApproximateNumberOfMessagesNotVisible": "8", "RedrivePolicy": policy, "SqsManagedSseEnabled": "true",
	})
	want := attributes{arn: "arn:orders", retention: 96 * time.Hour, limit: 262144, backlog: brokers.Backlog{Taken: aws.Int64(8)}, deadLetter: "arn:dead", maxReceives: 40}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if got, err := readAttributes(map[string]string{"RedrivePolicy": strings.Replace(policy, "40", `"12"`, 1)}); err != nil || got.maxReceives != 12 {
		t.Errorf("a count in quotes: %+v, %v", got, err)
	}
	for _, bad := range [][2]string{
		{"MessageRetentionPeriod", "4 days"}, {"MessageRetentionPeriod", "-1"}, {"MaximumMessageSize", "99999999999999999999"},
		{"RedrivePolicy", strings.Replace(policy, "40", `"many"`, 1)}, {"RedrivePolicy", "{"},
	} {
		if _, err := readAttributes(map[string]string{bad[0]: bad[1]}); err == nil || !strings.Contains(err.Error(), bad[0]) {
			t.Errorf("%s %q: %v, want an error that names it", bad[0], bad[1], err)
		}
	}
}

func FuzzReadAttributes(f *testing.F) {
	f.Add("30", `{"deadLetterTargetArn":"arn","maxReceiveCount":3}`)
	f.Add("", `{"deadLetterTargetArn":"arn"}`)
	f.Fuzz(func(t *testing.T, number, policy string) {
		a, err := readAttributes(map[string]string{"MessageRetentionPeriod": number, "RedrivePolicy": policy})
		if err == nil && (a.retention < 0 || a.deadLetter == "" && a.maxReceives != 0) {
			t.Errorf("%q, %q: %+v", number, policy, a)
		}
	})
}
