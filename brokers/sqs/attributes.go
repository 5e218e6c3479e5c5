package sqs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// attributes are those of a queue. What the server does not tell is zero.
type attributes struct {
	arn       string
	retention time.Duration
	limit     int // MaximumMessageSize
	inFlight  int // an approximate count

	key   string // KmsMasterKeyId, empty without one
	plain bool   // SqsManagedSseEnabled is false, and there is no key

	// deadLetter and maxReceives are the RedrivePolicy; empty without one.
	deadLetter  string // ARN
	maxReceives int
}

// readAttributes reads what GetQueueAttributes answers.
func readAttributes(all map[string]string) (attributes, error) {
	a := attributes{arn: all[string(types.QueueAttributeNameQueueArn)], key: all[nameKey]}
	a.plain = a.key == "" && all[nameManaged] == "false"
	for _, number := range []struct {
		name types.QueueAttributeName
		to   func(int)
	}{
		{types.QueueAttributeNameMessageRetentionPeriod, func(n int) { a.retention = time.Duration(n) * time.Second }},
		{types.QueueAttributeNameMaximumMessageSize, func(n int) { a.limit = n }},
		{types.QueueAttributeNameApproximateNumberOfMessagesNotVisible, func(n int) { a.inFlight = n }},
	} {
		text, ok := all[string(number.name)]
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return a, fmt.Errorf("the attribute %s is %.40q, not a number", number.name, text)
		}
		number.to(int(n))
	}
	return a, a.readRedrivePolicy(all[string(types.QueueAttributeNameRedrivePolicy)])
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
