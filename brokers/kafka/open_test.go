package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

func TestOpenCreates(t *testing.T) {
	onKafka(t, 3, func(s *scene) {
		large := uniqueName("large")
		s.create(large, 5, map[string]string{"max.message.bytes": "3000000"})
		dead := uniqueName("dead")
		s.options.DelayPartitions = 2
		sub := brokers.Subscription{Topics: []string{large, s.topic}, DeadLetters: map[string]string{s.topic: dead}, MaxDelay: 30 * time.Hour}
		b, _ := s.broker()
		for range 2 {
			source, err := b.Open(kafka.WithinTime(s.T), sub)
			if err != nil {
				s.Fatalf("Open: %v", err)
			}
			defer source.Close(s.Context())
		}
		prefix := "redrive.delay.v1." + s.group + "."
		names := []string{dead, prefix + "1m", prefix + "15m", prefix + "3h", prefix + "24h"}
		const week = 7 * 24 * time.Hour
		retention := map[string]time.Duration{"1m": time.Minute, "15m": 15 * time.Minute, "3h": 3 * time.Hour, "24h": 30 * time.Hour}
		for _, name := range names {
			if c := s.configs(name); c["cleanup.policy"] != "delete" || c["max.message.bytes"] != fmt.Sprint(3_000_000+64<<10) {
				s.Errorf("%s: %v", name, c)
			}
			longest, delayed := retention[strings.TrimPrefix(name, prefix)]
			if want := map[bool]int{true: 2, false: kafka.LetterPartitions}[delayed]; s.partitions(name) != want {
				s.Errorf("%s has %d partitions, want %d", name, s.partitions(name), want)
			}
			if c := s.configs(name); delayed && (c["retention.bytes"] != "-1" || c["retention.ms"] != fmt.Sprint((longest+week).Milliseconds())) {
				s.Errorf("%s: retention %s bytes, %s ms", name, c["retention.bytes"], c["retention.ms"])
			}
			if c := s.configs(name); name == dead && (c["retention.bytes"] != "-1" || c["retention.ms"] != "-1") {
				s.Errorf("%s: retention %s bytes, %s ms, want letters to stay", name, c["retention.bytes"], c["retention.ms"])
			}
		}
		s.options.DelayPartitions, s.options.Verify = 5, true
		b, _ = s.broker()
		source, err := b.Open(kafka.WithinTime(s.T), sub)
		if err != nil {
			s.Fatalf("Open with Verify of what another Open has created, with another number of partitions: %v", err)
		}
		if err := source.Close(kafka.WithinTime(s.T)); err != nil {
			s.Error(err)
		}
	})
}

// A topic whose retention is too short for its range may be enough for what the
// policy puts there.
func TestOpenAcceptsWhatThePolicyNeeds(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		prefix := "redrive.delay.v1." + s.group + "."
		s.create(prefix+"3h", 1, map[string]string{"retention.ms": fmt.Sprint((90 * time.Minute).Milliseconds())})
		s.create(prefix+"24h", 1, map[string]string{"retention.ms": fmt.Sprint((90 * time.Minute).Milliseconds())})
		for delay, want := range map[time.Duration]error{30 * time.Minute: nil, 31 * time.Minute: brokers.ErrMisconfigured} {
			b, _ := s.broker()
			source, err := b.Open(kafka.WithinTime(s.T), brokers.Subscription{Topics: []string{s.topic}, MaxDelay: delay})
			if !errors.Is(err, want) {
				s.Errorf("with delays of up to %v: %v, want %v", delay, err, want)
			}
			if err == nil {
				source.Close(kafka.WithinTime(s.T))
			}
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		for name, tt := range map[string]struct {
			topic   func(group, dead string) string
			configs map[string]string
			wants   []string
		}{
			"compacted":        {delayName, map[string]string{"cleanup.policy": "compact"}, []string{"cleanup.policy is compact", "--add-config cleanup.policy=delete"}},
			"also compacted":   {delayName, map[string]string{"cleanup.policy": "compact,delete"}, []string{"cleanup.policy is ", "--add-config cleanup.policy=delete"}},
			"bounded":          {delayName, map[string]string{"retention.bytes": "1000000"}, []string{"retention.bytes is 1000000", "--add-config retention.bytes=-1"}},
			"short":            {delayName, map[string]string{"retention.ms": "60000"}, []string{"retention.ms is 60000", "the least is 3660000", "--add-config retention.ms=604860000"}},
			"small":            {delayName, map[string]string{"max.message.bytes": "1000"}, []string{"max.message.bytes is 1000", "--add-config max.message.bytes=1114124"}},
			"dead compacted":   {deadName, map[string]string{"cleanup.policy": "compact"}, []string{"cleanup.policy is compact", "dead letters"}},
			"dead small":       {deadName, map[string]string{"max.message.bytes": "1000"}, []string{"max.message.bytes is 1000", "--add-config max.message.bytes=1114124"}},
			"only to verify":   {nil, nil, []string{"no such topic", "Verify", ".1m --partitions 1 --replication-factor 1 --config cleanup.policy=delete --config max.message.bytes=1114124 --config retention.bytes=-1 --config retention.ms=604860000"}},
			"no replicas left": {nil, nil, []string{"fewer brokers than replicas"}},
		} {
			group, dead := uniqueName("group"), uniqueName("dead")
			o := s.options
			wants := tt.wants
			switch {
			case tt.topic != nil:
				topic := tt.topic(group, dead)
				s.create(topic, 1, tt.configs)
				wants = append(wants, topic)
			case name == "only to verify":
				o.Verify = true
			case onFake():
				continue
			default:
				o.Replication = 99
			}
			b, err := kafka.New(o)
			if err != nil {
				s.Fatal(err)
			}
			defer b.Close(s.Context())
			_, err = b.Open(kafka.WithinTime(s.T), brokers.Subscription{Topics: []string{s.topic}, Group: group, DeadLetters: map[string]string{s.topic: dead}, MaxDelay: time.Minute})
			if refused, ok := errors.AsType[*brokers.TopologyError](err); !ok || errors.Is(err, brokers.ErrNotFound) != (tt.topic == nil) {
				s.Errorf("%s: %v, %+v", name, err, refused)
				continue
			}
			if left, gone := s.partitions(dead), tt.topic == nil || tt.topic(group, dead) != dead; (left == 0) != gone {
				s.Errorf("%s: a refused Open leaves a dead-letter topic of %d partitions", name, left)
			}
			if left, gone := s.partitions(delayName(group, dead)), tt.topic == nil || tt.topic(group, dead) == dead; (left == 0) != gone {
				s.Errorf("%s: a refused Open leaves a delay topic of %d partitions", name, left)
			}
			for _, want := range wants {
				if !strings.Contains(err.Error(), want) {
					s.Errorf("%s: %q does not say %q", name, err, want)
				}
			}
		}
	})
}

func delayName(group, _ string) string { return "redrive.delay.v1." + group + ".1m" }

func deadName(_, dead string) string { return dead }

// A broker out of the box has no rack and names no replicas. Without Options.Rack that
// is as it should be.
func TestInspectRacks(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		inspect := func(rack string) (about []string) {
			s.options.Rack = rack
			b, _ := s.broker()
			found, err := b.Inspect(kafka.WithinTime(s.T), brokers.Subscription{Topics: []string{s.topic}, Group: s.group})
			if err != nil {
				s.Fatal(err)
			}
			for _, f := range found {
				if f.Setting == kafka.RackSetting || f.Setting == kafka.Selector {
					about = append(about, f.Setting)
				}
			}
			return about
		}
		if got := strings.Join(inspect("eu-1a"), " "); got != kafka.RackSetting+" "+kafka.Selector {
			s.Errorf("with a rack it finds %q, want %s and %s", got, kafka.RackSetting, kafka.Selector)
		}
		if got := inspect(""); got != nil {
			s.Errorf("without a rack it finds %q", got)
		}
	})
}
