package sqs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
)

// attributes are those of a queue. What the server does not tell is zero.
type attributes struct {
	arn       string
	retention time.Duration
	limit     int             // MaximumMessageSize
	backlog   brokers.Backlog // how many messages it has, approximately

	key   string // KmsMasterKeyId, empty without one
	plain bool   // SqsManagedSseEnabled is false, and there is no key

	// deadLetter and maxReceives are the RedrivePolicy; empty without one.
	deadLetter  string // ARN
	maxReceives int

	// date is the clock of the server, from when it was asked to when it had told.
	date, asked, told time.Time
}

// readAttributes reads what GetQueueAttributes answers.
func readAttributes(all map[string]string) (a attributes, err error) {
	count := func(name types.QueueAttributeName) *int64 {
		text, told := all[string(name)]
		if !told {
			return nil
		}
		n, fault := strconv.ParseUint(text, 10, 31)
		if fault != nil {
			err = fmt.Errorf("the attribute %s is %.40q, not a number", name, text)
		}
		return aws.Int64(int64(n))
	}
	number := func(name types.QueueAttributeName) int { return int(aws.ToInt64(count(name))) }
	a = attributes{
		arn:       all[string(types.QueueAttributeNameQueueArn)],
		retention: time.Duration(number(types.QueueAttributeNameMessageRetentionPeriod)) * time.Second,
		limit:     number(types.QueueAttributeNameMaximumMessageSize),
		backlog: brokers.Backlog{
			Ready:   count(types.QueueAttributeNameApproximateNumberOfMessages),
			Taken:   count(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible),
			Delayed: count(types.QueueAttributeNameApproximateNumberOfMessagesDelayed),
		},
		key:   all[nameKey],
		plain: all[nameKey] == "" && all[nameManaged] == "false",
	}
	return a, cmp.Or(err, a.readRedrivePolicy(all[string(types.QueueAttributeNameRedrivePolicy)]))
}

// readRedrivePolicy reads the JSON in which the count is a number or, as some
// tools write it, a text.
func (a *attributes) readRedrivePolicy(text string) error {
	if text == "" {
		return nil
	}
	var policy struct {
		Target string          `json:"deadLetterTargetArn"`
		Count  json.RawMessage `json:"maxReceiveCount"`
	}
	err := json.Unmarshal([]byte(text), &policy)
	if err == nil && policy.Target != "" {
		a.deadLetter = policy.Target
		a.maxReceives, err = strconv.Atoi(strings.Trim(string(policy.Count), `"`))
	}
	if err != nil {
		return fmt.Errorf("the attribute RedrivePolicy is %.200q, which cannot be read: %w", text, err)
	}
	return nil
}
