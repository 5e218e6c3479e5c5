package sqs

import (
	"cmp"
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

	// date is the clock of the server, from when it was asked to when it had told.
	date, asked, told time.Time
}

// readAttributes reads what GetQueueAttributes answers.
func readAttributes(all map[string]string) (a attributes, err error) {
	number := func(name types.QueueAttributeName) int {
		text, ok := all[string(name)]
		n, fault := strconv.ParseUint(text, 10, 31)
		if ok && fault != nil {
			err = fmt.Errorf("the attribute %s is %.40q, not a number", name, text)
		}
		return int(n)
	}
	a = attributes{
		arn:       all[string(types.QueueAttributeNameQueueArn)],
		retention: time.Duration(number(types.QueueAttributeNameMessageRetentionPeriod)) * time.Second,
		limit:     number(types.QueueAttributeNameMaximumMessageSize),
		inFlight:  number(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible),
		key:       all[nameKey],
		plain:     all[nameKey] == "" && all[nameManaged] == "false",
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
