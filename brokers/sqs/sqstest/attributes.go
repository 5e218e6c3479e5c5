package sqstest

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const arnPrefix = "arn:aws:sqs:" + region + ":" + account + ":"

// target is the queue of a request.
type target struct {
	QueueURL string `json:"QueueUrl"`
}

func (t *target) queueName() string { return t.QueueURL[strings.LastIndex(t.QueueURL, "/")+1:] }

// settings are the attributes of a queue that can be set: as texts, and parsed.
type settings struct {
	texts                              map[string]string
	delay, wait, visibility, retention time.Duration
	size                               int
	contentDedup, groupScope           bool
	redrive                            *redrivePolicy
}

type redrivePolicy struct {
	target string // an ARN
	max    int
}

// setting is an attribute of a queue that can be set.
type setting struct {
	fifo        bool // of FIFO queues alone
	initial     string
	least, most int      // of a number, where most is not 0
	values      []string // that it can have; nil for any
}

// settable are the attributes that can be set.
var settable = map[string]setting{
	"DelaySeconds":                  {most: maxDelay, initial: "0"},
	"MaximumMessageSize":            {least: 1024, most: maxMessage, initial: "1048576"},
	"MessageRetentionPeriod":        {least: 60, most: 1_209_600, initial: "345600"},
	"ReceiveMessageWaitTimeSeconds": {most: 20, initial: "0"},
	"VisibilityTimeout":             {most: maxVisibility, initial: "30"},
	"SqsManagedSseEnabled":          {values: []string{"true", "false"}, initial: "true"},
	"FifoQueue":                     {fifo: true, values: []string{"true"}, initial: "true"},
	"ContentBasedDeduplication":     {fifo: true, values: []string{"true", "false"}, initial: "false"},
	"DeduplicationScope":            {fifo: true, values: []string{"queue", "messageGroup"}, initial: "queue"},
	"FifoThroughputLimit":           {fifo: true, values: []string{"perQueue", "perMessageGroupId"}, initial: "perQueue"},
	"Policy":                        {},
	"RedrivePolicy":                 {},
	"RedriveAllowPolicy":            {},
	"KmsMasterKeyId":                {},
	"KmsDataKeyReusePeriodSeconds":  {},
}

// told are the attributes that cannot be set.
var told = []string{"QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", "ApproximateNumberOfMessages",
	"ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"}

// defaults are the attributes of a new queue.
func defaults(fifo bool) map[string]string {
	out := make(map[string]string)
	for name, s := range settable {
		if s.initial != "" && (fifo || !s.fifo) {
			out[name] = s.initial
		}
	}
	return out
}

// parseSettings checks attributes, those that are set now and those that stay.
// An empty text clears an attribute.
func parseSettings(old, changes map[string]string, fifo bool) (settings, error) {
	texts := maps.Clone(old)
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		value := lowerBoolean(changes[name])
		if err := checkSetting(name, value, fifo); err != nil {
			return settings{}, err
		}
		if value == "" {
			delete(texts, name)
		} else {
			texts[name] = value
		}
	}
	period := func(name string) time.Duration {
		n, _ := strconv.Atoi(texts[name])
		return time.Duration(n) * time.Second
	}
	out := settings{
		texts:        texts,
		delay:        period("DelaySeconds"),
		wait:         period("ReceiveMessageWaitTimeSeconds"),
		visibility:   period("VisibilityTimeout"),
		retention:    period("MessageRetentionPeriod"),
		contentDedup: texts["ContentBasedDeduplication"] == "true",
		groupScope:   texts["DeduplicationScope"] == "messageGroup",
	}
	out.size, _ = strconv.Atoi(texts["MaximumMessageSize"])
	if texts["FifoThroughputLimit"] == "perMessageGroupId" && !out.groupScope {
		return settings{}, invalid("FifoThroughputLimit", "perMessageGroupId", "It needs the DeduplicationScope messageGroup.")
	}
	var err error
	out.redrive, err = parseRedrivePolicy(texts["RedrivePolicy"])
	return out, err
}

// lowerBoolean returns the one spelling of true and false, and other values as
// they are.
func lowerBoolean(value string) string {
	if lower := strings.ToLower(value); lower == "true" || lower == "false" {
		return lower
	}
	return value
}

// checkSetting checks one attribute that is to be set.
func checkSetting(name, value string, fifo bool) error {
	s, ok := settable[name]
	if !ok || s.fifo && !fifo {
		return fail("InvalidAttributeName", "Unknown Attribute %s.", name)
	}
	if n, err := strconv.Atoi(value); s.most > 0 && (err != nil || n < s.least || n > s.most) {
		return fail("InvalidAttributeValue", "Invalid value for the parameter %s: %q is not a whole number from %d to %d.", name, value, s.least, s.most)
	}
	if s.values != nil && !slices.Contains(s.values, value) {
		return fail("InvalidAttributeValue", "Invalid value for the parameter %s: %q is none of %s.", name, value, strings.Join(s.values, ", "))
	}
	return nil
}

func parseRedrivePolicy(text string) (*redrivePolicy, error) {
	if text == "" {
		return nil, nil
	}
	var in struct {
		Target string          `json:"deadLetterTargetArn"`
		Max    json.RawMessage `json:"maxReceiveCount"`
	}
	bad := func(reason string) error { return invalid("RedrivePolicy", text, reason) }
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, bad("Amazon SQS can't create the redrive policy, as it is not JSON.")
	}
	if in.Target == "" {
		return nil, bad("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
	}
	n, err := strconv.Atoi(strings.Trim(string(in.Max), `"`))
	if err != nil || n < 1 || n > 1000 {
		return nil, bad("Invalid value for maxReceiveCount: it must be a whole number from 1 to 1000.")
	}
	return &redrivePolicy{target: in.Target, max: n}, nil
}

// attributes returns all attributes of the queue.
func (q *queue) attributes() map[string]string {
	out := maps.Clone(q.settings.texts)
	out["QueueArn"] = q.report.ARN
	out["CreatedTimestamp"] = strconv.FormatInt(q.created.Unix(), 10)
	out["LastModifiedTimestamp"] = strconv.FormatInt(q.modified.Unix(), 10)
	out["ApproximateNumberOfMessages"] = strconv.Itoa(len(q.messages) - q.inFlight - q.delayed)
	out["ApproximateNumberOfMessagesNotVisible"] = strconv.Itoa(q.inFlight)
	out["ApproximateNumberOfMessagesDelayed"] = strconv.Itoa(q.delayed)
	return out
}

// attributeExists reports whether GetQueueAttributes knows the name, whether or
// not the queue has it.
func attributeExists(name string) bool {
	_, ok := settable[name]
	return ok || slices.Contains(told, name)
}
