package kafka

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// Marks of the IDs of cluster and topic, and of the newest batch that was read, in the
// metadata of a commit. A semicolon ends each.
const logMark, epochMark = "t", "e"

// epochEnd is the leader epoch of a batch that was read, and the offset behind that
// batch. The zero value is none.
//
// The epochs of the batches in a log never fall. So in a log that has the batch, or had
// it before it was deleted or compacted, no later epoch begins before end, and its
// leader does not say that the epoch ends before. If it does, the log was cut there:
// no change of leaders does that but an unclean one, as only what all replicas in sync
// have is read. This holds for any batch, whatever the low-water mark is. That of the
// newest tells also of a cut behind the mark, where offsets may be done.
type epochEnd struct {
	epoch int32
	end   int64
}

// logText is what the metadata of a commit says of the log. An epoch is one of a topic
// of a cluster.
func logText(log string, seen epochEnd) (text string) {
	if log != "" {
		text = logMark + log + ";"
	}
	if log != "" && seen != (epochEnd{}) {
		text += fmt.Sprintf(epochMark+"%d.%d;", seen.epoch, seen.end)
	}
	return text
}

// cutLog takes that off the front of the metadata of a commit. What another version or
// client has written there is the ID of no topic.
func cutLog(text string) (log string, seen epochEnd, rest string) {
	if strings.HasPrefix(text, metadataVersion) {
		return "", seen, text
	}
	log, rest, _ = strings.Cut(text, ";")
	if e := (epochEnd{}); strings.HasPrefix(rest, epochMark) {
		if _, err := fmt.Sscanf(rest, epochMark+"%d.%d;", &e.epoch, &e.end); err == nil {
			seen = e
		}
		_, rest, _ = strings.Cut(rest, ";")
	}
	return strings.TrimPrefix(log, logMark), seen, rest
}

// verify makes sure that the log is the one that the last commit was for, and reports
// whether it is. A topic that was deleted and made anew has another ID: all of it is
// new. In a log that was cut, what follows the cut is. The reader begins with that, or
// ends if it has begun with the old log: the next one finds the same, and tells. What
// another cluster says tells nothing: tools that copy offsets from there copy it, too.
func (r *reader) verify(ctx context.Context, stable int64) (same bool, err error) {
	s, p := r.source, r.partition
	var is identity
	err = retry(ctx, func() error {
		node, err := s.fetches.nodeOf(ctx, p, false)
		if err == nil {
			is = s.fetches.leader(node).ask(ctx, p, r.seen.epoch)
			err = is.err
		}
		if err != nil {
			s.fetches.forget(p)
		}
		return s.broker.client.Reread(ctx, p.topic, err)
	})
	if err != nil {
		return false, explain(err, "ask whether %s is the same log as before", p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	alarm, from := &rangeError{partition: p, offset: r.progress.lowWater(), first: r.has.first, last: r.has.last}, r.has.first
	where, id, _ := strings.Cut(is.log, "/")
	was, before, _ := strings.Cut(r.log, "/")
	switch {
	case where == "":
		return true, nil
	case where != was:
		r.log, r.seen = is.log, epochEnd{}
		return true, nil
	case id != before && id != "" && before != "":
		alarm.anew = true
	case is.end >= 0 && is.end < r.seen.end:
		alarm.cut, alarm.offset, alarm.last = true, r.seen.end, is.end
		from = max(from, is.end)
	default:
		r.log = where + "/" + cmp.Or(id, before)
		return true, nil
	}
	if r.begun {
		r.end(alarm)
		return false, alarm
	}
	s.alarm(alarm)
	r.progress = r.progress.cut(from)
	r.next, r.last = r.progress.lowWater(), commitment{offset: -1}
	r.log, r.seen = where+"/"+cmp.Or(id, before), epochEnd{}
	if r.delayed != nil {
		r.delayed.target = cmp.Or(stable, r.has.last)
	}
	return false, nil
}

// identity is what a leader says of the log of a partition.
type identity struct {
	log string // the IDs of cluster and topic with a slash between them; that of a topic is "" before Kafka 2.8
	end int64  // where the epoch ends that was asked for, -1 if the leader does not know
	err error
}

// question is one about the log of a partition.
type question struct {
	partition
	epoch  int32
	answer chan identity
}

// ask asks about the log of p. What comes while others are asked about is asked together
// after that: no answer counts that may be older than what was fetched before.
func (l *leader) ask(ctx context.Context, p partition, epoch int32) identity {
	q := &question{p, epoch, make(chan identity, 1)}
	l.mu.Lock()
	l.questions = append(l.questions, q)
	l.mu.Unlock()
	signal(l.late)
	select {
	case is := <-q.answer:
		return is
	case <-ctx.Done():
		return identity{err: context.Cause(ctx)}
	}
}

func (l *leader) askAll() {
	l.mu.Lock()
	all := l.questions
	l.questions = nil
	l.mu.Unlock()
	if len(all) == 0 {
		return
	}
	found, err := l.identify(all)
	for _, q := range all {
		is := found[q.partition]
		is.err = cmp.Or(err, is.err)
		q.answer <- is
	}
}

// pinned is a request that keeps its version, which is newer than those that the
// library knows.
type pinned struct{ kmsg.Request }

// SetVersion implements kmsg.Request.
func (pinned) SetVersion(int16) {}

const (
	versionWithIDs = 10 // of Metadata, the first with the IDs of topics
	epochsVersion  = 3  // of OffsetForLeaderEpoch, the last in the old encoding
)

// identify asks for the IDs of cluster and topics, and for the ends of epochs.
func (l *leader) identify(all []*question) (map[partition]identity, error) {
	c, ctx := l.fetches.client, l.fetches.ctx
	if time.Since(l.asked) > time.Minute {
		res, err := c.ask(ctx, l.node, kmsg.NewPtrApiVersionsRequest())
		if err != nil {
			return nil, err
		}
		l.asked, l.versions = time.Now(), make(map[int16]int16)
		for _, k := range res.(*kmsg.ApiVersionsResponse).ApiKeys {
			l.versions[k.ApiKey] = k.MaxVersion
		}
	}
	var topics byTopic[kmsg.OffsetForLeaderEpochRequestTopic]
	for _, q := range all {
		one := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		one.Partition, one.LeaderEpoch = int32(q.number), q.epoch
		topic := topics.of(q.topic, kmsg.OffsetForLeaderEpochRequestTopic{Topic: q.topic})
		topic.Partitions = append(topic.Partitions, one)
	}
	about := cluster.About(slices.Collect(maps.Keys(topics.at))...)
	var req kmsg.Request = about
	if l.versions[about.Key()] >= versionWithIDs {
		about.Version, req = versionWithIDs, pinned{about}
	}
	res, err := c.ask(ctx, l.node, req)
	if err != nil {
		return nil, err
	}
	logs, got := make(map[string]string), res.(*kmsg.MetadataResponse)
	for _, topic := range got.Topics {
		id := base64.RawURLEncoding.EncodeToString(topic.TopicID[:])
		if topic.TopicID == [16]byte{} {
			id = ""
		}
		logs[*topic.Topic] = *cmp.Or(got.ClusterID, new(string)) + "/" + id
	}
	found := make(map[partition]identity)
	for _, q := range all {
		found[q.partition] = identity{log: logs[q.topic], end: -1}
	}
	epochs := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epochs.Version, epochs.ReplicaID, epochs.Topics = epochsVersion, -1, topics.list
	if l.versions[epochs.Key()] < epochsVersion {
		return found, nil
	}
	if res, err = c.ask(ctx, l.node, pinned{epochs}); err != nil {
		return nil, err
	}
	for _, topic := range res.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		for _, part := range topic.Partitions {
			at := partition{topic.Topic, int(part.Partition)}
			is := found[at]
			if is.err = codeError(part.ErrorCode); is.err == nil && part.LeaderEpoch >= 0 {
				is.end = part.EndOffset
			} else if is.err != nil && !isPassing(is.err) { // tells nothing
				is.err = nil
			}
			found[at] = is
		}
	}
	return found, nil
}
