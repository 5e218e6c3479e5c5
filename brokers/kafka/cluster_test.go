package kafka_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/describegroups"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/heartbeat"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/leavegroup"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

const (
	delayOfOrders = "redrive.delay.v1.g.1m"
	fetchVersion  = 11              // of the fetches that come
	readCommitted = 1               // the isolation level that leaves out what was aborted
	stubTime      = 946_684_800_000 // when records of a stub were made, unless they say
	clusterID     = "C"
)

var (
	first      = partition{"orders", 0}
	errSilence = errors.New("never an answer")
)

// stub is a cluster of one broker in memory, with one worker. It says what a test wants
// it to say. All partitions have the same log.
type stub struct {
	*testing.T
	options kafka.Options
	limits  *kafka.Limits
	sub     brokers.Subscription
	broker  *kafka.Broker
	src     brokers.Source
	line    *line // of the worker

	mu      sync.Mutex
	topics  map[string]int // and their partitions
	id      [16]byte       // of each topic, zero as before Kafka 2.8
	epochs  epochs         // nil as before Kafka 2.3
	log     []batch
	start   int64
	stable  int64         // the end of the log, if it is less
	corrupt int64         // the base of a batch whose checksum is wrong
	slow    time.Duration // that a fetch of nothing takes, if it is not what was asked for
	aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction
	dials   int
	calls   map[protocol.ApiKey]int
	stored  map[string]int // records by topic that were sent

	// answer may answer instead: with a message, or with an error that ends the
	// connection. It is called without the lock.
	answer func(req protocol.Message, call int) (protocol.Message, error)

	// fetching may answer a fetch instead, by the broker's address.
	fetching func(address string, req *fetch.Request) kmsg.Response

	group
}

// onStub runs test in virtual time, after prepare has changed what there is: a topic of
// one partition that has ten records, which its worker has.
func onStub(t *testing.T, prepare func(s *stub), test func(s *stub)) {
	t.Helper()
	onBroker(t, func(s *stub) {
		if prepare != nil {
			prepare(s)
		}
		s.open()
		test(s)
	})
}

// onBroker runs test in virtual time on a Broker that has no source yet.
func onBroker(t *testing.T, test func(s *stub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stub{
			T: t, topics: map[string]int{"orders": 1, delayOfOrders: 1}, log: []batch{{records: numbered(0, 10)}}, corrupt: -1,
			calls: make(map[protocol.ApiKey]int), stored: make(map[string]int),
			options: kafka.Options{Brokers: []string{"stub:9092"}, Group: "g"},
			sub:     brokers.Subscription{Topics: []string{"orders"}, MaxDelay: time.Minute},
			group:   group{next: []formed{{share: []int{0}}}, state: preparing, commits: make(map[partition]string), owned: make(map[partition]commitment)},
		}
		s.connect()
		defer func() {
			if err := s.broker.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Minute) // for what the stub is about to answer: a join takes five at most
		}()
		test(s)
	}) // which fails if a goroutine is left
}

// line is the connections of a worker.
type line struct {
	stub *stub
	dead atomic.Bool
}

// connect makes a Broker.
func (s *stub) connect() {
	s.Helper()
	s.line = &line{stub: s}
	o := s.options
	o.Dial = s.line.dial
	b, err := kafka.New(o)
	if err != nil {
		s.Fatal(err)
	}
	if s.limits != nil {
		kafka.Limit(b, *s.limits)
	}
	s.broker = b
}

// open makes a Broker, and has it read.
func (s *stub) open() {
	s.Helper()
	s.broker.Close(s.Context())
	s.connect()
	src, err := s.broker.Open(s.Context(), s.sub)
	if err != nil {
		s.Fatal(err)
	}
	s.src = src
}

// crash ends the worker as if its process was killed.
func (s *stub) crash() {
	s.line.dead.Store(true)
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	s.broker.Close(ended)
}

func (l *line) dial(_ context.Context, _, address string) (net.Conn, error) {
	if l.dead.Load() {
		return nil, errCut
	}
	l.stub.change(func(s *stub) { s.dials++ })
	ours, theirs := net.Pipe()
	go l.serve(theirs, address)
	return ours, nil
}

// change changes what the stub says while it is in use.
func (s *stub) change(change func(s *stub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// says has the stub answer instead from now on.
func (s *stub) says(answer func(req protocol.Message, call int) (protocol.Message, error)) {
	s.change(func(s *stub) { s.answer = answer })
}

// answering answers requests of one kind, unless it has nothing to say.
func answering[Req protocol.Message](answer func(Req) protocol.Message) func(protocol.Message, int) (protocol.Message, error) {
	return func(m protocol.Message, _ int) (protocol.Message, error) {
		if req, ok := m.(Req); ok {
			return answer(req), nil
		}
		return nil, nil
	}
}

// sleep lets time pass, which is that of the bubble.
func (s *stub) sleep(d time.Duration) { time.Sleep(d) }

// count is how many requests of a kind came.
func (s *stub) count(key protocol.ApiKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[key]
}

func (l *line) serve(conn net.Conn, address string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		version, id, req, err := readRequest(in)
		if err != nil || l.dead.Load() {
			return
		}
		res, err := l.stub.respond(req, address)
		if err == errSilence {
			io.Copy(io.Discard, in)
			return
		}
		if err != nil || l.dead.Load() {
			return
		}
		if raw, ok := res.(said); ok {
			_, err = conn.Write(frameOf(raw.Response, id))
		} else {
			err = protocol.WriteResponse(conn, version, id, res)
		}
		if err != nil {
			return
		}
	}
}

// fromVersion is that from which on kafka-go does not read requests: they are asked, and
// their answers are said.
var fromVersion = map[kmsg.Key]int16{kmsg.Metadata: 9, kmsg.OffsetForLeaderEpoch: 0}

type (
	asked struct{ kmsg.Request }
	said  struct{ kmsg.Response }
)

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (a asked) ApiKey() protocol.ApiKey { return protocol.ApiKey(a.Key()) }

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (s said) ApiKey() protocol.ApiKey { return protocol.ApiKey(s.Key()) }

// readRequest reads any request that clients send.
func readRequest(in *bufio.Reader) (version int16, id int32, req protocol.Message, err error) {
	const client = 12 // where the ID of the client is, behind length, key, version and ID
	head, err := in.Peek(client + 2)
	if err != nil {
		return 0, 0, nil, err
	}
	key := kmsg.Key(binary.BigEndian.Uint16(head[4:]))
	version, id = int16(binary.BigEndian.Uint16(head[6:])), int32(binary.BigEndian.Uint32(head[8:]))
	if from, ok := fromVersion[key]; !ok || version < from {
		_, _, _, req, err = protocol.ReadRequest(in)
		return version, id, req, err
	}
	frame := make([]byte, 4+binary.BigEndian.Uint32(head))
	if _, err := io.ReadFull(in, frame); err != nil {
		return 0, 0, nil, err
	}
	raw := key.Request()
	raw.SetVersion(version)
	body := frame[client+2+binary.BigEndian.Uint16(frame[client:]):]
	if raw.IsFlexible() { // then its head has additions, which are none
		body = body[1:]
	}
	return version, id, asked{raw}, raw.ReadFrom(body)
}

func (s *stub) respond(req protocol.Message, address string) (protocol.Message, error) {
	s.mu.Lock()
	s.calls[req.ApiKey()]++
	call, instead := s.calls[req.ApiKey()], s.answer
	s.mu.Unlock()
	if instead != nil {
		if res, err := instead(req, call); res != nil || err != nil {
			return res, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch req := req.(type) {
	case *apiversions.Request:
		return s.versions(), nil
	case *metadata.Request:
		return s.layout(req), nil
	case *describeconfigs.Request:
		return &describeconfigs.Response{}, nil
	case *describegroups.Request:
		return &describegroups.Response{Groups: []describegroups.ResponseGroup{{GroupID: "g", GroupState: "Stable", ProtocolData: kafka.Cooperative}}}, nil
	case *findcoordinator.Request:
		return &findcoordinator.Response{NodeID: 1, Host: "stub", Port: 9092}, nil
	case *listoffsets.Request:
		return s.bounds(req), nil
	case *produce.Request:
		s.note(req)
		return produced(req, 0), nil
	case *fetch.Request:
		if s.fetching != nil {
			if res := s.fetching(address, req); res != nil {
				return said{res}, nil
			}
		}
		return said{s.fetch(req)}, nil
	case *joingroup.Request:
		return s.join(req), nil
	case *syncgroup.Request:
		return s.sync(req), nil
	case *heartbeat.Request: // the response of kafka-go is not what clients read
		res := kmsg.NewPtrHeartbeatResponse()
		res.Version, res.ErrorCode = 3, int16(s.beat(req))
		return said{res}, nil
	case *offsetcommit.Request:
		return s.store(req), nil
	case *offsetfetch.Request:
		return s.load(req), nil
	case *leavegroup.Request:
		return &leavegroup.Response{}, nil
	case asked:
		switch req := req.Request.(type) {
		case *kmsg.MetadataRequest:
			return said{s.identities(req)}, nil
		case *kmsg.OffsetForLeaderEpochRequest:
			return said{s.ends(req)}, nil
		}
	}
	s.Errorf("the stub has no answer to %s", req.ApiKey())
	return nil, errSilence
}

func (s *stub) versions() protocol.Message {
	versions := map[protocol.ApiKey]int16{
		protocol.Produce: 8, protocol.Fetch: 11, protocol.ListOffsets: 5, protocol.Metadata: 6, protocol.OffsetCommit: 6,
		protocol.OffsetFetch: 5, protocol.FindCoordinator: 2, protocol.ApiVersions: 0, protocol.SaslHandshake: 1,
		protocol.SaslAuthenticate: 1, protocol.CreateTopics: 4, protocol.DescribeConfigs: 3, protocol.DescribeGroups: 2,
		protocol.JoinGroup: 5, protocol.SyncGroup: 3, protocol.Heartbeat: 3, protocol.LeaveGroup: 3,
	}
	if s.id != [16]byte{} {
		versions[protocol.Metadata] = 12
	}
	if s.epochs != nil {
		versions[protocol.OffsetForLeaderEpoch] = 4
	}
	res := &apiversions.Response{}
	for key, highest := range versions {
		res.ApiKeys = append(res.ApiKeys, apiversions.ApiKeyResponse{ApiKey: int16(key), MaxVersion: highest})
	}
	return res
}

// identities are the IDs of topics.
func (s *stub) identities(req *kmsg.MetadataRequest) kmsg.Response {
	res, cluster := req.ResponseKind().(*kmsg.MetadataResponse), clusterID
	res.ClusterID = &cluster
	for _, topic := range req.Topics {
		is := kmsg.NewMetadataResponseTopic()
		if is.Topic, is.TopicID = topic.Topic, s.id; s.topics[*topic.Topic] == 0 {
			is.ErrorCode, is.TopicID = int16(kafkago.UnknownTopicOrPartition), [16]byte{}
		}
		res.Topics = append(res.Topics, is)
	}
	return res
}

// epochs says which leader epoch up to the one that is asked for a log has, and where it
// ends.
type epochs func(asked int32) (epoch int32, end int64, code kafkago.Error)

// byBatches says it of the log, as a broker does.
func (s *stub) byBatches(asked int32) (epoch int32, end int64, code kafkago.Error) {
	epoch = asked // also of what was deleted
	for i, b := range s.log {
		if b.epoch > asked {
			return epoch, b.base, 0
		}
		if i == len(s.log)-1 && b.epoch < asked {
			return -1, -1, 0
		}
		epoch = b.epoch
	}
	return epoch, s.end(), 0
}

// ends are those of leader epochs.
func (s *stub) ends(req *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	res := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	for _, topic := range req.Topics {
		out := kmsg.OffsetForLeaderEpochResponseTopic{Topic: topic.Topic}
		for _, p := range topic.Partitions {
			one := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			epoch, end, code := s.epochs(p.LeaderEpoch)
			one.Partition, one.LeaderEpoch, one.EndOffset, one.ErrorCode = p.Partition, epoch, end, int16(code)
			out.Partitions = append(out.Partitions, one)
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

// inCommit is what the metadata of a commit says of a topic of a cluster.
func inCommit(cluster string, id [16]byte) string {
	return "t" + cluster + "/" + base64.RawURLEncoding.EncodeToString(id[:]) + ";"
}

// layout is that of the cluster. mu is held here and below.
func (s *stub) layout(req *metadata.Request) protocol.Message {
	res := &metadata.Response{ClusterID: clusterID, ControllerID: 1, Brokers: []metadata.ResponseBroker{{NodeID: 1, Host: "stub", Port: 9092}}}
	names := req.TopicNames
	if names == nil {
		for name := range s.topics {
			names = append(names, name)
		}
	}
	for _, name := range names {
		topic := metadata.ResponseTopic{Name: name, TopicAuthorizedOperations: math.MinInt32} // not known
		if s.topics[name] == 0 {
			topic.ErrorCode = int16(kafkago.UnknownTopicOrPartition)
		}
		for n := range s.topics[name] {
			topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{PartitionIndex: int32(n), LeaderID: 1, ReplicaNodes: []int32{1}, IsrNodes: []int32{1}})
		}
		res.Topics = append(res.Topics, topic)
	}
	return res
}

// note counts the records that are sent.
func (s *stub) note(req *produce.Request) {
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			for {
				if _, err := p.RecordSet.Records.ReadRecord(); err != nil {
					break
				}
				s.stored[topic.Topic]++
			}
		}
	}
}

func produced(req *produce.Request, code kafkago.Error) protocol.Message {
	topic := req.Topics[0]
	return &produce.Response{Topics: []produce.ResponseTopic{{Topic: topic.Topic, Partitions: []produce.ResponsePartition{{
		Partition: topic.Partitions[0].Partition, ErrorCode: int16(code),
	}}}}}
}

func (s *stub) end() int64 {
	if n := len(s.log); n > 0 {
		return s.log[n-1].end()
	}
	return s.start
}

func (s *stub) bounds(req *listoffsets.Request) protocol.Message {
	res := &listoffsets.Response{}
	for _, topic := range req.Topics {
		out := listoffsets.ResponseTopic{Topic: topic.Topic}
		for _, p := range topic.Partitions {
			at := listoffsets.ResponsePartition{Partition: p.Partition, Timestamp: -1, Offset: s.start}
			if p.Timestamp == -1 {
				at.Offset = s.end()
			}
			if int(p.Partition) >= s.topics[topic.Topic] {
				at.ErrorCode = int16(kafkago.UnknownTopicOrPartition)
			}
			out.Partitions = append(out.Partitions, at)
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

// fetch answers from the batch on that an offset belongs to: at least with one batch, and
// with others while they fit.
func (s *stub) fetch(req *fetch.Request) kmsg.Response {
	if req.IsolationLevel != readCommitted {
		s.Errorf("isolation level %d is fetched with, so that aborted records come", req.IsolationLevel)
	}
	res, found := kmsg.NewPtrFetchResponse(), false
	res.Version = fetchVersion
	for _, asked := range req.Topics {
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic = asked.Topic
		for _, p := range asked.Partitions {
			part := s.part(p)
			found = found || len(part.RecordBatches) > 0
			topic.Partitions = append(topic.Partitions, part)
		}
		res.Topics = append(res.Topics, topic)
	}
	if !found && req.MinBytes > 0 {
		s.pass(cmp.Or(s.slow, time.Duration(req.MaxWaitTime)*time.Millisecond)) // as a broker does
	}
	return res
}

// part is what a partition has from an offset on.
func (s *stub) part(asked fetch.RequestPartition) kmsg.FetchResponseTopicPartition {
	part := kmsg.NewFetchResponseTopicPartition()
	part.Partition, part.HighWatermark, part.LastStableOffset, part.LogStartOffset = asked.Partition, s.end(), s.end(), s.start
	if s.stable > 0 {
		part.LastStableOffset = min(s.end(), s.stable)
	}
	if asked.FetchOffset < s.start || asked.FetchOffset > s.end() {
		part.ErrorCode = int16(kafkago.OffsetOutOfRange)
	}
	for _, b := range s.log {
		if part.ErrorCode != 0 || b.end() <= asked.FetchOffset || b.base >= part.LastStableOffset {
			continue
		}
		b.made = cmp.Or(b.made, stubTime) // whenever it is fetched
		raw := b.bytes()
		if b.base == s.corrupt {
			raw[len(raw)-1] ^= 1
		}
		if n := len(part.RecordBatches); n > 0 && n+len(raw) > int(asked.PartitionMaxBytes) {
			break
		}
		part.RecordBatches = append(part.RecordBatches, raw...)
	}
	part.AbortedTransactions = s.aborted
	return part
}

// fetched is the answer about one partition of orders.
func fetched(part kmsg.FetchResponseTopicPartition) kmsg.Response {
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.Partitions = "orders", []kmsg.FetchResponseTopicPartition{part}
	res := kmsg.NewPtrFetchResponse()
	res.Version, res.Topics = fetchVersion, []kmsg.FetchResponseTopic{topic}
	return res
}

// frameOf is the answer to request id.
func frameOf(res kmsg.Response, id int32) []byte {
	var body []byte
	if res.IsFlexible() {
		body = append(body, 0) // additions of its head
	}
	body = res.AppendTo(body)
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(out, uint32(id)), body...)
}

// batch is one of records in the format of Kafka since 0.11, with what the client
// library cannot write: producers, transactions, marks and holes. Or it is one record in
// the format before.
type batch struct {
	old           bool
	timeless      bool // the record is of format 0, and not 1
	base          int64
	epoch         int32 // of the leader
	producer      int64
	transactional bool
	mark          string // "commit" or "abort" makes it a control batch
	last          int64  // the last offset, if it is not that of the last record
	made          int64  // in Unix milliseconds, now unless it is set
	records       []record
	raw           []byte // all of it, if it is set
}

// end is the offset behind the batch.
func (b batch) end() int64 {
	last := max(b.base, b.last)
	if k := len(b.records); k > 0 {
		last = max(last, b.records[k-1].offset)
	}
	return last + 1
}

func (b batch) bytes() []byte {
	made := cmp.Or(b.made, time.Now().UnixMilli())
	if b.raw != nil {
		return bytes.Clone(b.raw)
	}
	if b.old {
		return b.message(made)
	}
	out := kmsg.RecordBatch{FirstOffset: b.base, PartitionLeaderEpoch: b.epoch, Magic: 2, FirstTimestamp: made, MaxTimestamp: made, ProducerID: b.producer}
	if b.transactional || b.mark != "" {
		out.Attributes |= 1 << 4
	}
	records := b.records
	if b.mark != "" {
		out.Attributes |= 1 << 5
		key := []byte{0, 0, 0, 0}
		if b.mark == "commit" {
			key[3] = 1
		}
		records = []record{{offset: b.base, key: key, value: []byte{0, 0, 0, 0, 0, 0}}}
	}
	for _, r := range records {
		one := kmsg.Record{OffsetDelta: int32(r.offset - b.base), Key: r.key, Value: r.value}
		for _, h := range r.headers {
			one.Headers = append(one.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		raw := one.AppendTo(nil)[1:] // without its length, which is 0 yet
		out.Records = append(binary.AppendVarint(out.Records, int64(len(raw))), raw...)
	}
	out.LastOffsetDelta, out.NumRecords = int32(b.end()-1-b.base), int32(len(records))
	return sealBatch(out.AppendTo(nil))
}

// sealBatch sets the length and the checksum of a batch.
func sealBatch(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// message is the first record in format 0 or 1.
func (b batch) message(made int64) []byte {
	r := b.records[0]
	raw := (&kmsg.MessageV1{Offset: r.offset, Magic: 1, Timestamp: made, Key: r.key, Value: r.value}).AppendTo(nil)
	if b.timeless {
		raw = (&kmsg.MessageV0{Offset: r.offset, Key: r.key, Value: r.value}).AppendTo(nil)
	}
	return sealMessage(raw)
}

// sealMessage is sealBatch for formats 0 and 1.
func sealMessage(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[12:], crc32.ChecksumIEEE(raw[16:]))
	return raw
}

// logOf is a batch for each record, in order.
func logOf(records ...record) (log []batch) {
	for i, r := range records {
		r.offset = int64(i)
		b := batch{base: r.offset, records: []record{r}}
		if !r.time.IsZero() {
			b.made = r.time.UnixMilli()
		}
		log = append(log, b)
	}
	return log
}

// take receives n deliveries, and fails if errors come before.
func (s *stub) take(n int) (ds []*brokers.Delivery) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	for len(ds) < n {
		more, err := s.src.Receive(ctx, n-len(ds))
		if err != nil {
			s.Fatalf("received %d of %d: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

// collect acks what is received within d, and returns it with the errors.
func (s *stub) collect(d time.Duration) (ds []*brokers.Delivery, errs []error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	for {
		more, err := s.src.Receive(ctx, 10)
		switch {
		case ctx.Err() != nil && len(more) == 0:
			return ds, errs
		case err != nil:
			errs = append(errs, err)
		}
		s.ack(more...)
		ds = append(ds, more...)
	}
}

// comes is collect for what comes without errors.
func (s *stub) comes(d time.Duration) []*brokers.Delivery {
	s.Helper()
	ds, errs := s.collect(d)
	if len(errs) > 0 {
		s.Errorf("errors: %v", errors.Join(errs...))
	}
	return ds
}

// quiet fails the test if there is something to receive, or an error.
func (s *stub) quiet(when string, d time.Duration) {
	s.Helper()
	if ds := s.comes(d); len(ds) > 0 {
		s.Errorf("%s: received %v", when, bodies(ds))
	}
}

// settle returns the errors of settling.
func (s *stub) settle(action brokers.Action, ds ...*brokers.Delivery) error {
	var batch []brokers.Settlement
	for _, d := range ds {
		batch = append(batch, brokers.Settlement{Delivery: d, Action: action, Delay: time.Second})
	}
	return errors.Join(s.src.Settle(s.Context(), batch)...)
}

func (s *stub) ack(ds ...*brokers.Delivery) {
	s.Helper()
	if err := s.settle(brokers.Ack, ds...); err != nil {
		s.Errorf("ack: %v", err)
	}
}

// at is what the group has for a partition, -1 without a commit.
func (s *stub) at(p partition) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.owned[p]; ok {
		return at.offset
	}
	return -1
}

// commits demands that the next commit of a partition brings its offset to want.
func (s *stub) committed(p partition, want int64) {
	s.Helper()
	time.Sleep(2 * kafka.CommitPace)
	if got := s.at(p); got != want {
		s.Errorf("offset %d of %s is committed, want %d", got, p, want)
	}
}

// ids are those of deliveries, in the order in which they came.
func ids(ds []*brokers.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, d.Message.ID)
	}
	return all
}

// texts are the bodies of deliveries, in the order in which they came.
func texts(ds []*brokers.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, string(d.Message.Body))
	}
	return all
}

func (s *stub) is(what string, got, want any) {
	s.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("%s: %v, want %v", what, got, want)
	}
}

// formed is one generation of a group, as a test wants its member to see it.
type formed struct {
	protocol   string        // cooperative unless it is set
	share      []int         // partitions of orders
	also       []string      // topics of which partition 0 is, too
	heedless   bool          // the leader is of an old version
	cut        bool          // another member joins before the leader has a plan
	skipped    int32         // generations without the member
	join, sync time.Duration // that the other members, and the leader, take
	beside     []byte        // what another member says, which the member leads
}

// group is one that a coordinator knows, with one real member.
type group struct {
	next       []formed // the last of them is formed again if the member joins once more
	state      string
	generation int32
	refusal    kafkago.Error // of heartbeats
	joins      []kmsg.ConsumerMemberMetadata
	offers     []string
	commits    map[partition]string // the last one: generation, offset and metadata
	owned      map[partition]commitment
	refused    int  // commits
	remade     bool // the log, so that commits go back
}

// Between two generations members are waited for, and then for the leader's plan.
const (
	stable     = "stable"
	preparing  = "preparing"
	completing = "completing"
)

func (s *stub) join(req *joingroup.Request) protocol.Message {
	if req.MemberID == "" {
		return &joingroup.Response{ErrorCode: int16(kafkago.MemberIDRequired), MemberID: "m"}
	}
	said := kmsg.NewConsumerMemberMetadata()
	if err := said.ReadFrom(req.Protocols[0].Metadata); err != nil {
		s.Error(err)
	}
	s.joins, s.offers = append(s.joins, said), nil
	for _, offer := range req.Protocols {
		s.offers = append(s.offers, offer.Name)
	}
	switch code := s.refusal; code {
	case 0, kafkago.IllegalGeneration:
		s.refusal = 0
	case kafkago.UnknownMemberId:
		s.refusal = 0
		fallthrough
	default:
		return &joingroup.Response{ErrorCode: int16(code)}
	}
	if s.generation > 0 && len(s.next) > 1 {
		s.next = s.next[1:]
	}
	f := s.next[0]
	s.state = preparing
	s.pass(f.join)
	s.generation += 1 + f.skipped
	s.state = completing
	res := &joingroup.Response{GenerationID: s.generation, ProtocolName: cmp.Or(f.protocol, kafka.Cooperative), LeaderID: "another", MemberID: "m"}
	if f.beside != nil {
		res.LeaderID = "m"
		res.Members = []joingroup.ResponseMember{{MemberID: "m", Metadata: req.Protocols[0].Metadata}, {MemberID: "another", Metadata: f.beside}}
	}
	return res
}

// pass lets time pass, without the lock.
func (s *stub) pass(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
}

func (s *stub) sync(req *syncgroup.Request) protocol.Message {
	if req.GenerationID != s.generation {
		s.Errorf("sync of generation %d, which is %d", req.GenerationID, s.generation)
	}
	f := s.next[0]
	s.pass(f.sync)
	if f.cut {
		s.state = preparing
		return &syncgroup.Response{ErrorCode: int16(kafkago.RebalanceInProgress)}
	}
	s.state = stable
	for _, plan := range req.Assignments {
		if plan.MemberID == "m" {
			return &syncgroup.Response{Assignments: plan.Assignment}
		}
	}
	share := kmsg.NewConsumerMemberAssignment()
	add := func(name string, numbers ...int) {
		topic := kmsg.NewConsumerMemberAssignmentTopic()
		topic.Topic = name
		for _, number := range numbers {
			topic.Partitions = append(topic.Partitions, int32(number))
		}
		share.Topics = append(share.Topics, topic)
	}
	add("orders", f.share...)
	for _, name := range f.also {
		add(name, 0)
	}
	if !f.heedless {
		share.UserData = []byte(kafka.Heeds)
	}
	return &syncgroup.Response{Assignments: share.AppendTo(nil)}
}

// beat says what is against a heartbeat.
func (s *stub) beat(req *heartbeat.Request) kafkago.Error {
	switch {
	case s.refusal != 0:
		return s.refusal
	case req.GenerationID != s.generation:
		return kafkago.IllegalGeneration
	case s.state == preparing:
		return kafkago.RebalanceInProgress
	}
	return 0
}

func (s *stub) store(req *offsetcommit.Request) protocol.Message {
	code := kafkago.Error(0)
	switch {
	case s.refusal != 0:
		code = s.refusal
	case req.GenerationID != s.generation || req.MemberID != "m" || req.GroupID != "g":
		code = kafkago.IllegalGeneration
	case s.state == completing:
		code = kafkago.RebalanceInProgress
	}
	if code != 0 {
		s.refused++
	}
	res := &offsetcommit.Response{}
	for _, topic := range req.Topics {
		out := offsetcommit.ResponseTopic{Name: topic.Name}
		for _, p := range topic.Partitions {
			out.Partitions = append(out.Partitions, offsetcommit.ResponsePartition{PartitionIndex: p.PartitionIndex, ErrorCode: int16(code)})
			at := partition{topic.Name, int(p.PartitionIndex)}
			if code != 0 {
				continue
			}
			if before := s.owned[at].offset; p.CommittedOffset < before && !s.remade {
				s.Errorf("the commit of %v goes back from %d to %d", at, before, p.CommittedOffset)
			}
			s.owned[at] = commitment{p.CommittedOffset, p.CommittedMetadata}
			s.commits[at] = fmt.Sprint(req.GenerationID, " ", p.CommittedOffset, p.CommittedMetadata[:1])
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

func (s *stub) load(req *offsetfetch.Request) protocol.Message {
	res := &offsetfetch.Response{}
	for _, topic := range req.Topics {
		out := offsetfetch.ResponseTopic{Name: topic.Name}
		for _, number := range topic.PartitionIndexes {
			at, ok := s.owned[partition{topic.Name, int(number)}]
			if !ok {
				at.offset = -1
			}
			out.Partitions = append(out.Partitions, offsetfetch.ResponsePartition{PartitionIndex: number, CommittedOffset: at.offset, Metadata: at.metadata})
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

// rebalance has the group form again.
func (s *stub) rebalance(next ...formed) {
	s.change(func(s *stub) { s.next, s.state = slices.Concat(s.next[:1], next), preparing })
}

// refuse answers the member with an error from now on.
func (s *stub) refuse(code kafkago.Error) { s.change(func(s *stub) { s.refusal = code }) }
