package livetest

import (
	"maps"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, tt := range []struct {
		name                string
		env                 map[string]string
		address, skip, fail string // parts of what is to come back
	}{
		{name: "an address", env: map[string]string{"A_URL": "amqp://a"}, address: "amqp://a"},
		{name: "an address in CI", env: map[string]string{"A_URL": "amqp://a", "CI": "true"}, address: "amqp://a"},
		{name: "none", skip: "A_URL is not set"},
		{name: "none in CI", env: map[string]string{"CI": "true"}, fail: "with CI=true this is a failure"},
		{name: "none where CI means something else", env: map[string]string{"CI": "1"}, skip: "make up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address, skip, err := lookup(func(key string) string { return tt.env[key] }, "A_URL")
			if address != tt.address {
				t.Errorf("address %q, want %q", address, tt.address)
			}
			if !strings.Contains(skip, tt.skip) || (skip == "") != (tt.skip == "") {
				t.Errorf("skipped with %q, want %q", skip, tt.skip)
			}
			if (err == nil) != (tt.fail == "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
				t.Errorf("failed with %v, want %q", err, tt.fail)
			}
		})
	}
}

func TestSomeBrokersAreForTheNight(t *testing.T) {
	t.Setenv("REDRIVE_KAFKA_URL", "mine:9092")
	t.Setenv("REDRIVE_KAFKA39_URL", "mine:9093")
	t.Setenv("REDRIVE_REDIS_URL", "redis://mine")
	t.Setenv("REDRIVE_VALKEY_URL", "redis://other")
	t.Setenv("REDRIVE_RABBITMQ_URL", "amqp://old")
	t.Setenv("REDRIVE_RABBITMQ4_URL", "amqp://new")
	for value, want := range map[string]map[string]string{
		"":     {"kafka43": "mine:9092", "rabbitmq4": "amqp://new", "redis7": "redis://mine"},
		"true": {"kafka43": "mine:9092", "kafka39": "mine:9093", "rabbitmq3": "amqp://old", "rabbitmq4": "amqp://new", "redis7": "redis://mine", "valkey8": "redis://other"},
	} {
		t.Setenv("REDRIVE_NIGHTLY", value)
		got := map[string]string{}
		note := func(t *testing.T, target Target) {
			if !strings.Contains(t.Name(), "/"+target.Name) {
				t.Errorf("%s ran on %+v", t.Name(), target)
			}
			got[target.Name] = target.URL
		}
		Kafka(t, note)
		RabbitMQ(t, note)
		Redis(t, note)
		if !maps.Equal(got, want) {
			t.Errorf("with REDRIVE_NIGHTLY=%q: ran on %q, want %q", value, got, want)
		}
	}
}

func TestProductsHaveTheirOwnAddresses(t *testing.T) {
	t.Setenv("REDRIVE_NIGHTLY", "")
	t.Setenv("REDRIVE_REDIS_URL", "redis://mine:6379/3")
	t.Setenv("REDRIVE_SQS_URL", "http://mine:9324")
	got := map[string]string{}
	note := func(t *testing.T, target Target) { got[target.Name] = target.URL }
	Redis(t, note)
	SQS(t, note)
	if want := map[string]string{"redis7": "redis://mine:6379/3", "elasticmq": "http://mine:9324"}; !maps.Equal(got, want) {
		t.Errorf("ran on %q, want %q", got, want)
	}
}
