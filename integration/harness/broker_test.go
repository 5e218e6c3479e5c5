package harness

import (
	"slices"
	"strings"
	"testing"
)

// TestBrokersDoNotMeet: two brokers with one port or one name would be one. A
// broker with the name of a product would be all of them.
func TestBrokersDoNotMeet(t *testing.T) {
	seen := map[any]string{RabbitMQ: "the product", Kafka: "the product", SQS: "the product", Redis: "the product"}
	for _, b := range Brokers() {
		for _, own := range []any{Product(b.Name), b.Env, b.Image, b.Port, b.Management, b.Controller, b.dist, b.epmd} {
			if other, ok := seen[own]; ok {
				t.Errorf("%s and %s both have %v", other, b.Name, own)
			}
			if own != 0 {
				seen[own] = b.Name
			}
		}
		if got, err := find(b.Name); err != nil || got != b {
			t.Errorf("find(%q) = %+v, %v", b.Name, got, err)
		}
	}
	for _, b := range Cluster() {
		for _, own := range []any{Product(b.Name), b.Port, b.Management, b.dist} {
			if other, ok := seen[own]; ok {
				t.Errorf("%s and %s both have %v", other, b.Name, own)
			}
			seen[own] = b.Name
		}
		if other, ok := seen[b.epmd]; ok {
			t.Errorf("%s and the cluster both have %v", other, b.epmd)
		}
		if got, err := find(b.Name); err != nil || got != b {
			t.Errorf("find(%q) = %+v, %v", b.Name, got, err)
		}
	}
	if _, err := find("rabbitmq"); err == nil || !strings.Contains(err.Error(), "rabbitmq3") {
		t.Errorf("find of a product = %v, want an error that lists the brokers", err)
	}
}

func TestSelect(t *testing.T) {
	for _, tt := range []struct {
		names, want []string // no want: an error
	}{
		{nil, []string{"rabbitmq3", "rabbitmq4", "kafka43", "kafka39", "elasticmq", "redis7"}},
		{[]string{"redis"}, []string{"redis7"}},
		{[]string{"kafka"}, []string{"kafka43", "kafka39"}},
		{[]string{"kafka39", "rabbitmq"}, []string{"rabbitmq3", "rabbitmq4", "kafka39"}},
		{[]string{"kafka43", "kafka"}, []string{"kafka43", "kafka39"}},
		{[]string{"sqs", "kafka39"}, []string{"kafka39", "elasticmq"}},
		{[]string{"kafka43", "nats"}, nil},
		{[]string{""}, nil},
	} {
		got, err := Select(tt.names...)
		if !slices.Equal(names(got), tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("Select(%q) = %q, %v; want %q", tt.names, names(got), err, tt.want)
		}
	}
}

func TestRelease(t *testing.T) {
	for _, b := range Brokers() {
		if got := b.release(); !strings.HasPrefix(got, b.Version) || strings.Count(got, ".") != 2 {
			t.Errorf("%s: release %q of %s, want one of %s", b.Name, got, b.Image, b.Version)
		}
	}
}

func TestEnvironment(t *testing.T) {
	brokers := Brokers()
	for _, b := range brokers {
		t.Setenv(b.Env, "")
		if b.Management != 0 {
			t.Setenv(b.ManagementEnv(), "")
		}
	}
	if Provided(brokers) {
		t.Error("Provided without any address")
	}
	want := []string{
		"REDRIVE_RABBITMQ_URL=amqp://guest:guest@127.0.0.1:25673/",
		"REDRIVE_RABBITMQ_MANAGEMENT_URL=http://guest:guest@127.0.0.1:25683/",
		"REDRIVE_RABBITMQ4_URL=amqp://guest:guest@127.0.0.1:25674/",
		"REDRIVE_RABBITMQ4_MANAGEMENT_URL=http://guest:guest@127.0.0.1:25684/",
		"REDRIVE_KAFKA_URL=127.0.0.1:25675",
		"REDRIVE_KAFKA39_URL=127.0.0.1:25676",
		"REDRIVE_SQS_URL=http://127.0.0.1:25677",
		"REDRIVE_REDIS_URL=redis://127.0.0.1:25678/0",
	}
	if got := Environment(brokers); !slices.Equal(got, want) {
		t.Errorf("Environment = %q, want %q", got, want)
	}

	t.Setenv("REDRIVE_KAFKA_URL", "mine:9092")
	if got := Environment(brokers)[4]; got != "REDRIVE_KAFKA_URL=mine:9092" {
		t.Errorf("an address of the user became %q", got)
	}
	kafka, err := Select("kafka")
	if err != nil {
		t.Fatal(err)
	}
	if Provided(kafka) {
		t.Error("Provided with one address of several")
	}
	t.Setenv("REDRIVE_KAFKA39_URL", "mine:9093")
	if !Provided(kafka) || Provided(brokers) {
		t.Error("want Kafka Provided, and not the others")
	}
}

func TestControlIsForRabbitMQ(t *testing.T) {
	if err := new(Harness).Control(t.Context(), "kafka43", "status"); err == nil || !strings.Contains(err.Error(), "kafka43 has no rabbitmqctl") {
		t.Errorf("Control = %v, want that kafka43 has no such tool", err)
	}
}

func TestNewRefusesAnUnknownEngine(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("REDRIVE_ENGINE", "podman")
	if _, err := New(t.Context(), t.Output()); err == nil || !strings.Contains(err.Error(), "REDRIVE_ENGINE=podman") {
		t.Errorf("New = %v, want an error that names REDRIVE_ENGINE=podman", err)
	}
}
