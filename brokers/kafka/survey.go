package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// survey is what there is of a plan.
type survey struct {
	topics   []quality
	findings []inspect.Finding
}

// A topic that was made a moment ago is not known to all brokers: it is asked for so
// often before it is missing.
const (
	newcomerTries = 5
	newcomerPause = 200 * time.Millisecond
)

// establish looks at all that p needs, and refuses it, or creates what is missing;
// with Options.Verify it creates nothing. It returns what the group reads, and what
// it takes as it is.
func (b *Broker) establish(ctx context.Context, p *plan) (map[string]topicState, []inspect.Finding, error) {
	found, err := b.survey(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	missing := found.missing()
	absent, err := b.absent(ctx, missing)
	if err != nil {
		return nil, nil, err
	}
	absent = slices.DeleteFunc(absent, func(f inspect.Finding) bool { return f.Severity == inspect.Noted })
	taken, err := adapter.Taken(append(found.findings, absent...))
	if err != nil {
		return nil, nil, err
	}
	for _, q := range missing {
		if err := b.client.create(ctx, q); err != nil {
			return nil, nil, err
		}
	}
	layout, err := b.client.topics(ctx, p.consumed()...)
	return layout, taken, err
}

// survey looks at all that p needs, and changes nothing. It has the group read the
// topics for longer delays, too, if there are any: an earlier policy may have left
// retries in them.
func (b *Broker) survey(ctx context.Context, p *plan) (survey, error) {
	names := slices.Concat(p.topics, p.dead, p.receipts, namesOf(p.delays), namesOf(p.longer))
	looked, err := b.client.look(ctx, names)
	missing := func(name string) bool { return looked[name].missing }
	for tries := 1; err == nil && slices.ContainsFunc(p.topics, missing) && tries < newcomerTries && adapter.Rest(ctx, newcomerPause); tries++ {
		looked, err = b.client.look(ctx, names)
	}
	if err != nil {
		return survey{}, err
	}
	for _, t := range p.longer {
		if looked[t.name].exists() {
			p.delays = append(p.delays, t)
		}
	}
	var readable []string
	for _, name := range slices.Concat(p.topics, p.dead, namesOf(p.delays)) {
		if looked[name].exists() && looked[name].may(kmsg.ACLOperationDescribeConfigs) {
			readable = append(readable, name)
		}
	}
	settings, err := b.client.configs(ctx, readable...)
	if err != nil {
		return survey{}, err
	}
	var like baseline
	p.known = make(map[string]int)
	for _, name := range p.topics {
		like = like.with(looked[name], settings[name])
		p.known[name] = looked[name].partitions
	}
	p.largest = like.largest
	s := survey{topics: b.qualities(*p, like, looked)}
	for i := range s.topics {
		q := &s.topics[i]
		q.state, q.settings = looked[q.name], settings[q.name]
		s.findings = append(s.findings, b.options.rightsOn(*q, p.readOnly)...)
		if q.state.exists() && !p.readOnly {
			s.findings = append(s.findings, q.judge()...)
		}
	}
	group, err := b.surveyGroup(ctx, *p)
	s.findings = append(s.findings, group...)
	for _, q := range s.topics {
		if q.state.denied || q.state.missing && q.role == entry {
			s.findings = append(s.findings, q.gap("there is no such topic, or the user may not see it"))
		}
	}
	return s, err
}

func namesOf(delays []delayTopic) (names []string) {
	for _, t := range delays {
		names = append(names, t.name)
	}
	return names
}

// qualities are the topics of p, with how they are made.
func (b *Broker) qualities(p plan, like baseline, looked map[string]topicState) (all []quality) {
	for _, name := range p.topics {
		all = append(all, quality{name: name, role: entry, needed: p.maxDelay, like: like})
	}
	limit := min(max(cmp.Or(p.largest, usualLargest), b.options.MessageLimit), math.MaxInt32-headroom)
	settings := func(retention string) map[string]string {
		return map[string]string{"cleanup.policy": "delete", "max.message.bytes": strconv.Itoa(limit + headroom), "retention.bytes": "-1", "retention.ms": retention}
	}
	for _, name := range p.dead {
		few := min(letterPartitions, cmp.Or(looked[p.topics[0]].partitions, letterPartitions))
		all = append(all, quality{name: name, role: letters, like: like, made: b.made(name, few, settings("-1"))})
	}
	for _, name := range p.receipts { // whatever the cluster keeps by default: a lost receipt loses no message
		all = append(all, quality{name: name, role: receipts, like: like, made: b.made(name, 0, map[string]string{"cleanup.policy": "delete"})})
	}
	for _, t := range p.delays {
		retention := strconv.FormatInt((t.longest + outage).Milliseconds(), 10)
		all = append(all, quality{name: t.name, role: delays, longest: t.longest, needed: t.needed, like: like, made: b.made(t.name, b.options.DelayPartitions, settings(retention))})
	}
	return all
}

// made is a topic as Open creates it. Zero partitions mean the broker's default.
func (b *Broker) made(name string, partitions int, settings map[string]string) newTopic {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(cmp.Or(partitions, -1)), int16(b.options.Replication)
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value := settings[key]
		topic.Configs = append(topic.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: key, Value: &value})
	}
	return topic
}

// missing are the topics to create.
func (s survey) missing() (missing []quality) {
	for _, q := range s.topics {
		if q.state.missing && q.role != entry {
			missing = append(missing, q)
		}
	}
	return missing
}

// absent finds for each topic that is missing whether Open creates it, which is noted.
// It has the cluster say why it would not, and creates nothing.
func (b *Broker) absent(ctx context.Context, missing []quality) (found []inspect.Finding, err error) {
	var errs map[string]error
	if !b.options.Verify {
		errs, err = b.client.tryCreate(ctx, missing)
	}
	for _, q := range missing {
		var f inspect.Finding
		switch refusal := errs[q.name]; {
		case b.options.Verify:
			f = q.gap("there is no such topic, and Options.Verify lets Run create none")
		case refusal == nil || errors.Is(refusal, kafka.TopicAlreadyExists):
			f = q.gap("there is no such topic: the first worker that starts creates it")
			f.Severity = inspect.Noted
		case q.isShort(refusal):
			f = q.gap("there is no such topic: a worker creates it when more brokers are up")
			f.Severity = inspect.Noted
		case is(refusal, kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed):
			f = q.gap("there is no such topic, and the user may not create it")
		default:
			f = q.gap(fmt.Sprintf("there is no such topic, and the cluster does not create it: %v", refusal))
			if fix, _ := cure(refusal); fix != "" {
				f.Fix = fix
			} else if is(refusal, kafka.InvalidReplicationFactor) {
				f.Fix = tooManyReplicas
			}
		}
		found = append(found, f)
	}
	return found, err
}
