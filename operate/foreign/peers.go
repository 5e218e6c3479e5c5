package foreign

import (
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// peer is a system that writes dead letters, and what it notes in them.
type peer struct {
	format Format
	rows   []row

	// ofBroker says that the rows are not of headers but of the details that the
	// adapter puts into Meta.Origin, where the broker moved the message itself.
	ofBroker bool
}

// row says what a header, or a detail, tells. Where several tell the same field,
// the last one that has a value counts.
type row struct {
	name  string
	field field
	form  func(value string) string // what the field is set to; nil: the value
	when  note                      // without which the row says nothing
	mark  bool                      // whoever has it is a dead letter of the peer
	first bool                      // of repeated headers the first counts, not the last
}

// note is a header, or a detail, with a certain value.
type note struct{ name, value string }

// field is one of dlq.Entry, by its name.
type field string

const (
	ignored       field = ""
	topic         field = "Message.Topic"
	publishedAt   field = "Message.PublishedAt"
	reason        field = "Reason"
	errorType     field = "ErrorType"
	errorText     field = "ErrorText"
	stack         field = "Stack"
	group         field = "Group"
	deadAt        field = "DeadAt"
	deadBy        field = "DeadBy"
	attempt       field = "Meta.Attempt"
	firstFailedAt field = "Meta.FirstFailedAt"
	origin        field = "Meta.Origin, " // and the name of the detail
)

func (f field) detail() string { return strings.TrimPrefix(string(f), string(origin)) }

func (p peer) notes(d *brokers.Delivery) brokers.Headers {
	if p.ofBroker {
		return d.Meta().Origin
	}
	return d.Message.Headers
}

func (p peer) marks(h brokers.Header) bool {
	return slices.ContainsFunc(p.rows, func(r row) bool { return r.mark && r.name == h.Name })
}

func (p peer) knows(name string) bool {
	return slices.ContainsFunc(p.rows, func(r row) bool { return r.name == name })
}

// value is what the row tells, empty if that is nothing.
func (r row) value(notes brokers.Headers) string {
	if r.when.name != "" && notes.Get(r.when.name) != r.when.value {
		return ""
	}
	value := notes.Get(r.name)
	if i := slices.IndexFunc(notes, func(h brokers.Header) bool { return h.Name == r.name }); r.first && i >= 0 {
		value = notes[i].Value
	}
	if r.form != nil && value != "" {
		value = r.form(value)
	}
	return value
}

// peers are in the order in which they are asked.
var peers = []peer{
	// Three spellings: of a DeadLetterPublishingRecoverer, of one behind retry
	// topics, and of the binder of Spring Cloud Stream. Their cause is the root of
	// an exception that mostly is no more than a wrapper.
	{format: SpringKafka, rows: []row{
		{name: "kafka_dlt-original-topic", field: topic, mark: true, first: true},
		{name: "kafka_dlt-original-partition", field: origin + "original-partition", form: bigEndian, first: true},
		{name: "kafka_dlt-original-offset", field: origin + "original-offset", form: bigEndian, first: true},
		{name: "kafka_dlt-original-timestamp", field: publishedAt, form: bigEndian, first: true},
		{name: "kafka_dlt-original-timestamp-type"},
		{name: "kafka_dlt-original-consumer-group", field: group, first: true},
		{name: "kafka_dlt-key-exception-fqcn", field: errorType},
		{name: "kafka_dlt-exception-fqcn", field: errorType, mark: true},
		{name: "kafka_dlt-exception-cause-fqcn", field: errorType},
		{name: "kafka_dlt-key-exception-message", field: errorText},
		{name: "kafka_dlt-exception-message", field: errorText},
		{name: "kafka_dlt-key-exception-stacktrace", field: stack},
		{name: "kafka_dlt-exception-stacktrace", field: stack},

		{name: "kafka_original-topic", field: topic, mark: true, first: true},
		{name: "kafka_original-partition", field: origin + "original-partition", form: bigEndian, first: true},
		{name: "kafka_original-offset", field: origin + "original-offset", form: bigEndian, first: true},
		{name: "kafka_original-timestamp", field: publishedAt, form: bigEndian, first: true},
		{name: "kafka_original-timestamp-type"},
		{name: "kafka_key-exception-fqcn", field: errorType},
		{name: "kafka_exception-fqcn", field: errorType, mark: true},
		{name: "kafka_exception-cause-fqcn", field: errorType},
		{name: "kafka_key-exception-message", field: errorText},
		{name: "kafka_exception-message", field: errorText},
		{name: "kafka_key-exception-stacktrace", field: stack},
		{name: "kafka_exception-stacktrace", field: stack},

		{name: "x-original-topic", field: topic, mark: true, first: true},
		{name: "x-original-partition", field: origin + "original-partition", form: bigEndian, first: true},
		{name: "x-original-offset", field: origin + "original-offset", form: bigEndian, first: true},
		{name: "x-original-timestamp", field: publishedAt, form: bigEndian, first: true},
		{name: "x-original-timestamp-type"},
		{name: "x-exception-fqcn", field: errorType},
		{name: "x-exception-message", field: errorText},
		{name: "x-exception-stacktrace", field: stack},

		// The count is of the next attempt, and the backoff before a dead letter is
		// none: its end is the time of the failure.
		{name: "kafka_deliveryAttempt", field: attempt, form: bigEndian},
		{name: "retry_topic-attempts", field: attempt, form: bigEndianLessOne},
		{name: "retry_topic-original-timestamp", field: publishedAt, form: bigEndian, first: true},
		{name: "retry_topic-backoff-timestamp", field: deadAt, form: bigEndian},
		{name: "springDeserializerExceptionKey"},
		{name: "springDeserializerExceptionValue"},
	}},

	{format: Watermill, rows: []row{
		{name: "reason_poisoned", field: errorText, mark: true},
		{name: "topic_poisoned", field: topic},
		{name: "handler_poisoned", field: deadBy},
		{name: "subscriber_poisoned", field: origin + "subscriber"},
	}},

	// MT-Fault-Address is none of these: it says where the producer wants to hear
	// of faults.
	{format: MassTransit, rows: []row{
		{name: "MT-Reason", field: reason, mark: true},
		{name: "MT-Fault-InputAddress", field: topic, form: lastOfURL},
		{name: "MT-Fault-ExceptionType", field: errorType},
		{name: "MT-Fault-Message", field: errorText},
		{name: "MT-Fault-StackTrace", field: stack},
		{name: "MT-Fault-Timestamp", field: deadAt, form: iso8601},
		{name: "MT-Fault-ConsumerType", field: origin + "consumer-type"},
		{name: "MT-Fault-MessageType", field: origin + "message-type"},
		{name: "MT-Fault-RetryCount", field: attempt, form: oneMore},
		{name: "MT-Fault-RedeliveryCount"},
		{name: "MT-Redelivery-Count"},
		{name: "MT-Host-MachineName", field: deadBy},
		{name: "MT-Host-ProcessName", field: origin + "process"},
		{name: "MT-Host-ProcessId"},
		{name: "MT-Host-Assembly"},
		{name: "MT-Host-AssemblyVersion"},
		{name: "MT-Host-MassTransitVersion"},
		{name: "MT-Host-FrameworkVersion"},
		{name: "MT-Host-OperatingSystemVersion"},
	}},

	// The time is that of the first of so many deaths.
	{format: RabbitMQ, ofBroker: true, rows: []row{
		{name: "first-death-queue", field: topic, mark: true},
		{name: "first-death-reason", field: reason},
		{name: "first-death-count", field: attempt, when: rejected},
		{name: "first-death-time", field: firstFailedAt, form: seconds, when: rejected},
		{name: "death-time", field: deadAt, form: seconds, when: note{"death-count", "1"}},
	}},

	// The count is of receives in all queues, the one that brought the letter
	// among them.
	{format: SQS, ofBroker: true, rows: []row{
		{name: "source-arn", field: topic, form: lastOfARN, mark: true},
		{name: "source-arn", field: reason, form: func(string) string { return "maxReceiveCount" }},
		{name: "receive-count", field: attempt, form: oneLess},
	}},
}

var rejected = note{"first-death-reason", "rejected"}
