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
	allow                              *redriveAllowPolicy
}

type redrivePolicy struct {
	target string // an ARN
	max    int
}

type redriveAllowPolicy struct {
	RedrivePermission string   `json:"redrivePermission"`
	SourceQueueARNs   []string `json:"sourceQueueArns"`
}

// attributeRange is an attribute whose value is a number.
type attributeRange struct{ least, most, initial int }

func numericAttributes() map[string]attributeRange {
	return map[string]attributeRange{
		"DelaySeconds":                  {0, maxDelay, 0},
		"MaximumMessageSize":            {1024, maxMessage, maxMessage},
		"MessageRetentionPeriod":        {60, 1_209_600, 345_600},
		"ReceiveMessageWaitTimeSeconds": {0, 20, 0},
		"VisibilityTimeout":             {0, maxVisibility, 30},
	}
}

// defaults are the attributes of a new queue.
func defaults(fifo bool) map[string]string {
	out := map[string]string{"SqsManagedSseEnabled": "true"}
	for name, r := range numericAttributes() {
		out[name] = strconv.Itoa(r.initial)
	}
	if fifo {
		out["FifoQueue"] = "true"
		out["ContentBasedDeduplication"] = "false"
		out["DeduplicationScope"] = "queue"
		out["FifoThroughputLimit"] = "perQueue"
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
	if out.redrive, err = parseRedrivePolicy(texts["RedrivePolicy"]); err != nil {
		return settings{}, err
	}
	out.allow, err = parseRedriveAllowPolicy(texts["RedriveAllowPolicy"])
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
	if r, ok := numericAttributes()[name]; ok {
		n, err := strconv.Atoi(value)
		if err != nil || n < r.least || n > r.most {
			return fail("InvalidAttributeValue", "Invalid value for the parameter %s: %q is not a whole number from %d to %d.", name, value, r.least, r.most)
		}
		return nil
	}
	oneOf := func(values ...string) error {
		if !slices.Contains(values, value) {
			return fail("InvalidAttributeValue", "Invalid value for the parameter %s: %q is none of %s.", name, value, strings.Join(values, ", "))
		}
		return nil
	}
	switch name {
	case "Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds":
		return nil
	case "SqsManagedSseEnabled":
		return oneOf("true", "false")
	}
	if fifo {
		switch name {
		case "FifoQueue":
			return oneOf("true")
		case "ContentBasedDeduplication":
			return oneOf("true", "false")
		case "DeduplicationScope":
			return oneOf("queue", "messageGroup")
		case "FifoThroughputLimit":
			return oneOf("perQueue", "perMessageGroupId")
		}
	}
	return fail("InvalidAttributeName", "Unknown Attribute %s.", name)
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

func parseRedriveAllowPolicy(text string) (*redriveAllowPolicy, error) {
	if text == "" {
		return nil, nil
	}
	var p redriveAllowPolicy
	bad := func(reason string) error { return invalid("RedriveAllowPolicy", text, reason) }
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return nil, bad("Amazon SQS can't create the redrive allow policy, as it is not JSON.")
	}
	switch p.RedrivePermission {
	case "allowAll", "denyAll":
		if len(p.SourceQueueARNs) > 0 {
			return nil, bad("sourceQueueArns needs the redrivePermission byQueue.")
		}
	case "byQueue":
		if n := len(p.SourceQueueARNs); n < 1 || n > 10 {
			return nil, bad("sourceQueueArns must have 1 to 10 ARNs.")
		}
	default:
		return nil, bad("redrivePermission must be allowAll, denyAll or byQueue.")
	}
	return &p, nil
}

// allows reports whether a queue may have its dead letters here.
func (p *redriveAllowPolicy) allows(source string) bool {
	switch {
	case p == nil || p.RedrivePermission == "allowAll":
		return true
	case p.RedrivePermission == "byQueue":
		return slices.Contains(p.SourceQueueARNs, source)
	}
	return false
}

// attributes returns all attributes of the queue.
func (q *queue) attributes() map[string]string {
	out := maps.Clone(q.settings.texts)
	out["QueueArn"] = q.arn
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
	switch name {
	case "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", "ApproximateNumberOfMessages",
		"ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed":
		return true
	}
	value := "true"
	if r, ok := numericAttributes()[name]; ok {
		value = strconv.Itoa(r.initial)
	}
	e := checkSetting(name, value, true)
	return e == nil || asError(e).kind.query != "InvalidAttributeName"
}
