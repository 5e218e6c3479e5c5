package kafka_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

func TestTopology(t *testing.T) {
	b, err := kafka.New(kafka.Options{Brokers: []string{"kafka-1:9092", "kafka-2:9092"}, Replication: 3})
	if err != nil {
		t.Fatal(err)
	}
	sub := brokers.Subscription{Topics: []string{"orders"}, Group: "billing", DeadLetters: map[string]string{"orders": "orders-dead"}, MaxDelay: 30 * time.Second, MaxAttempts: 3}
	other := sub
	other.Group = "ledger"
	got, err := b.Topology(sub, other)
	want := `kafka-topics.sh --create --if-not-exists --topic orders --bootstrap-server kafka-1:9092,kafka-2:9092
kafka-topics.sh --create --if-not-exists --topic orders-dead --partitions 3 --replication-factor 3 --config cleanup.policy=delete --config max.message.bytes=1114124 --config retention.bytes=-1 --config retention.ms=-1 --bootstrap-server kafka-1:9092,kafka-2:9092
kafka-topics.sh --create --if-not-exists --topic redrive.delay.v1.billing.1m --partitions 4 --replication-factor 3 --config cleanup.policy=delete --config max.message.bytes=1114124 --config retention.bytes=-1 --config retention.ms=604860000 --bootstrap-server kafka-1:9092,kafka-2:9092
kafka-topics.sh --create --if-not-exists --topic redrive.delay.v1.ledger.1m --partitions 4 --replication-factor 3 --config cleanup.policy=delete --config max.message.bytes=1114124 --config retention.bytes=-1 --config retention.ms=604860000 --bootstrap-server kafka-1:9092,kafka-2:9092
`
	if err != nil || got != want {
		t.Errorf("error %v, commands\n%s\nwant\n%s", err, got, want)
	}
	if _, err := b.Topology(brokers.Subscription{Group: "billing"}); err == nil {
		t.Error("there is a topology of nothing")
	}
}
