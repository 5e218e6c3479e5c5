package main

import (
	"slices"
	"strconv"
	"testing"
	"time"

	segmentio "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
)

// TestInspectOfACluster plants what can be wrong on several brokers alone.
func TestInspectOfACluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kfake.BrokerConfigs(map[string]string{"min.insync.replicas": "2"}))
	admin := &segmentio.Client{Addr: segmentio.TCP(w.cluster.ListenAddrs()...)}
	create := func(topic string, replicas int, configs ...string) {
		t.Helper()
		made := segmentio.TopicConfig{Topic: topic, NumPartitions: 4, ReplicationFactor: replicas}
		for i := 0; i < len(configs); i += 2 {
			made.ConfigEntries = append(made.ConfigEntries, segmentio.ConfigEntry{ConfigName: configs[i], ConfigValue: configs[i+1]})
		}
		answer, err := admin.CreateTopics(t.Context(), &segmentio.CreateTopicsRequest{Topics: []segmentio.TopicConfig{made}})
		if err == nil {
			err = answer.Errors[topic]
		}
		must(t, err)
	}
	inspect := func(topic string) (found []string) {
		t.Helper()
		sub := brokers.Subscription{Topics: []string{topic}, Group: "of-" + topic, DeadLetters: map[string]string{topic: topic + "-dead"}, MaxDelay: time.Minute, MaxAttempts: 10, InFlight: 10}
		b := w.broker()
		source, err := b.Open(t.Context(), sub)
		must(t, err)
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
		all, err := b.Inspect(t.Context(), sub)
		must(t, err)
		for _, f := range all {
			found = append(found, f.Severity.String()+" "+f.Topic+" "+f.Setting+" "+f.Value)
		}
		return found
	}
	for i, tt := range []struct {
		replicas int
		configs  []string
		want     string // of the topic
	}{
		{3, nil, ""},
		{1, nil, "replication factor 1"},
		{3, []string{"min.insync.replicas", "1"}, "min.insync.replicas 1"},
		{3, []string{"unclean.leader.election.enable", "true"}, "unclean.leader.election.enable true"},
		{3, []string{"retention.ms", "60000"}, "retention.ms 60000"},
	} {
		topic, want := "orders-"+strconv.Itoa(i), []string(nil)
		create(topic, tt.replicas, tt.configs...)
		if tt.want != "" {
			want = []string{"noted " + topic + " " + tt.want}
		}
		if found := inspect(topic); !slices.Equal(found, want) {
			t.Errorf("%d replicas, %q: found %q, want %q", tt.replicas, tt.configs, found, want)
		}
	}
}
