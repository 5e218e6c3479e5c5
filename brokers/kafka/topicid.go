package kafka

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// logMark begins the ID of the topic in the metadata of a commit, which a semicolon
// ends.
const logMark = "t"

// cutLog takes the ID of the topic off the front of the metadata of a commit. What
// another version or client has written there is the ID of no topic.
func cutLog(text string) (id, rest string) {
	if strings.HasPrefix(text, metadataVersion) {
		return "", text
	}
	id, rest, _ = strings.Cut(text, ";")
	return strings.TrimPrefix(id, logMark), rest
}

// verify makes sure that the topic is the one that the last commit was for: one that
// was deleted and made anew has another ID. In that one everything is new: the reader
// begins with it, or ends if it has begun with the old one. An ID of another cluster
// tells nothing: tools that copy offsets from there copy it, too.
func (r *reader) verify(ctx context.Context) error {
	s, topic := r.source, r.partition.topic
	var id string
	err := retry(ctx, func() error {
		node, err := s.fetches.leaderOf(ctx, r.partition) // which knows of a new topic before it has records of it
		if err == nil {
			id, err = s.broker.client.topicID(ctx, node, topic)
		}
		return s.broker.client.Reread(ctx, topic, err)
	})
	if err != nil || id == "" {
		return explain(err, "ask for the ID of topic %q", topic)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	where, _, _ := strings.Cut(id, "/")
	if r.log == id || !strings.HasPrefix(r.log, where+"/") {
		r.log = id
		return nil
	}
	alarm := &rangeError{partition: r.partition, offset: r.progress.lowWater(), first: r.has.first, last: r.has.last, anew: true}
	if r.begun { // the next reader finds the same, and tells
		r.end(alarm)
		return alarm
	}
	s.alarm(alarm)
	r.last = commitment{offset: -1}
	r.resume(r.has.first, "")
	r.log = id
	if r.delayed != nil {
		r.delayed.target = r.has.last
	}
	return nil
}

// pinned is a request that keeps its version, which is newer than those that the
// library knows.
type pinned struct{ kmsg.Request }

// SetVersion implements kmsg.Request.
func (pinned) SetVersion(int16) {}

// topicID returns the IDs of the cluster and of a topic as a node knows them, with a
// slash between them: "" if it has none for topics, as before Kafka 2.8.
func (c *client) topicID(ctx context.Context, node int32, topic string) (string, error) {
	const firstWithIDs = 10
	res, err := c.ask(ctx, node, kmsg.NewPtrApiVersionsRequest())
	if err != nil {
		return "", err
	}
	hasIDs := func(k kmsg.ApiVersionsResponseApiKey) bool {
		return k.ApiKey == int16(kmsg.Metadata) && k.MaxVersion >= firstWithIDs
	}
	if !slices.ContainsFunc(res.(*kmsg.ApiVersionsResponse).ApiKeys, hasIDs) {
		return "", nil
	}
	req := cluster.About(topic)
	req.Version = firstWithIDs
	if res, err = c.ask(ctx, node, pinned{req}); err != nil {
		return "", err
	}
	got := res.(*kmsg.MetadataResponse)
	if len(got.Topics) != 1 || got.Topics[0].TopicID == [16]byte{} || got.ClusterID == nil {
		return "", nil // brokers are being upgraded
	}
	return *got.ClusterID + "/" + base64.RawURLEncoding.EncodeToString(got.Topics[0].TopicID[:]), nil
}
