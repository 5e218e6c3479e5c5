package kafka_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// What a broker has against a fetch is told, and the partition goes on where it was.
func TestFetchErrors(t *testing.T) {
	for code, want := range map[kafkago.Error]struct {
		kind          error // of what Receive tells
		misconfigured bool
	}{
		kafkago.OffsetOutOfRange:         {kafkago.OffsetNotAvailable, false}, // which the log has: a new leader, perhaps
		kafkago.InvalidMessage:           {kafka.ErrCorrupt, false},
		kafkago.NotLeaderForPartition:    {kafkago.NotLeaderForPartition, false},
		kafkago.TopicAuthorizationFailed: {kafkago.TopicAuthorizationFailed, true},
		kafkago.UnsupportedVersion:       {kafkago.UnsupportedVersion, true},
		kafkago.OffsetNotAvailable:       {kafkago.OffsetNotAvailable, false},
	} {
		t.Run(code.Error(), func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.answer = answering(func(*fetch.Request) protocol.Message { return fetchError(code) })
			}, func(s *stub) {
				ds, errs := s.collect(5 * time.Second)
				if err := errors.Join(errs...); len(ds) > 0 || !errors.Is(err, want.kind) || errors.Is(err, brokers.ErrMisconfigured) != want.misconfigured {
					s.Errorf("received %v, errors %v", ids(ds), errs)
				}
				if n := s.count(protocol.Fetch); n > 100 {
					s.Errorf("%d fetches in 5 s", n)
				}
				s.says(nil)
				ds, _ = s.collect(10 * time.Second)
				s.is("messages afterwards", texts(ds), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
			})
		})
	}
}

// A topic that is gone costs the others no connections, and is read when it is there
// again.
func TestMissingTopicCostsNobodyConnections(t *testing.T) {
	onStub(t, func(s *stub) {
		s.topics["refunds"], s.sub.Topics, s.remade = 1, []string{"orders", "refunds"}, true
		s.next = []formed{{share: []int{0}, also: []string{"refunds"}}}
	}, func(s *stub) {
		s.is("messages of both", len(s.comes(5*time.Second)), 20)
		var dials int
		s.change(func(s *stub) {
			dials = s.dials
			delete(s.topics, "orders")
		})
		s.says(answering(func(req *fetch.Request) protocol.Message {
			if req.Topics[0].Topic == "orders" {
				return fetchError(kafkago.UnknownTopicOrPartition)
			}
			return nil
		}))
		_, errs := s.collect(14 * time.Second)
		err := errors.Join(errs...)
		gone, is := errors.AsType[*brokers.TopicError](err)
		if !is || gone.Topic != "orders" || strings.Count(err.Error(), gone.Error()) != 1 || errors.Is(err, brokers.ErrMisconfigured) {
			s.Errorf("errors: %v", errs)
		}
		s.change(func(s *stub) {
			if n := s.dials - dials; n > 3 {
				s.Errorf("%d connections were made while a topic is not there", n)
			}
			s.is("joins", len(s.joins), 1)
			s.topics["orders"], s.log = 1, append(s.log, batch{base: 10, records: []record{{offset: 10, value: []byte("10")}}})
			s.answer = nil
		})
		ds, _ := s.collect(20 * time.Second)
		s.is("messages when it is there again", texts(ds), []int{10, 10})
	})
}

// Connections that end are made again, and calls are repeated.
func TestLostConnections(t *testing.T) {
	ends := func(protocol.Message, int) (protocol.Message, error) { return nil, io.EOF }
	onStub(t, func(s *stub) {
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*fetch.Request); ok && call <= 3 {
				return nil, io.EOF
			}
			return nil, nil
		}
	}, func(s *stub) {
		ds := s.take(10)
		s.says(ends)
		s.ack(ds[:5]...)
		_, errs := s.collect(5 * time.Second)
		if err := errors.Join(errs...); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrLeaseLost) {
			s.Errorf("errors: %v", errs)
		}
		s.says(nil)
		s.sleep(5 * time.Second)
		s.ack(ds[5:]...)
		s.committed(first, 10)
		s.change(func(s *stub) { s.is("joins", len(s.joins), 1) })
	})
	onBroker(t, func(s *stub) {
		s.says(ends)
		start := time.Now()
		if _, err := s.broker.Open(s.Context(), s.sub); err == nil || errors.Is(err, brokers.ErrMisconfigured) || time.Since(start) > 5*time.Second {
			s.Errorf("Open after %v: %v", time.Since(start), err)
		}
	})
}

func TestFrozenBrokerHoldsNobodyForLong(t *testing.T) {
	const call = 10 * time.Second // the default of Options.CallTimeout
	onStub(t, nil, func(s *stub) {
		ds := s.take(10)
		s.sleep(time.Second)
		s.says(func(req protocol.Message, _ int) (protocol.Message, error) {
			switch req.(type) {
			case *fetch.Request, *produce.Request, *offsetcommit.Request:
				return nil, errSilence
			}
			return nil, nil
		})
		start := time.Now()
		s.ack(ds...)
		if _, err := s.src.Receive(s.Context(), 1); err == nil || time.Since(start) > call+2*kafka.LongestWait {
			s.Errorf("told after %v: %v", time.Since(start), err)
		}
		published := make(chan error)
		go func() { published <- s.broker.Publish(s.Context(), "orders", brokers.Message{}) }()
		s.sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := s.broker.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "leave group") || time.Since(start) != time.Second {
			s.Errorf("Close gave up after %v: %v", time.Since(start), err)
		}
		if err := <-published; !errors.Is(err, brokers.ErrUnknownOutcome) || time.Since(start) > 2*time.Second {
			s.Errorf("Publish gave up after %v: %v", time.Since(start), err)
		}
		s.says(nil)
	})
}

// Open waits until the topics that it creates can be used.
func TestCreateWaitsUntilTheTopicCanBeUsed(t *testing.T) {
	for name, patience := range map[string]int{"soon": 6, "never": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			onBroker(t, func(s *stub) {
				delete(s.topics, delayOfOrders)
				asked := 0
				s.says(func(req protocol.Message, _ int) (protocol.Message, error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					switch req := req.(type) {
					case *createtopics.Request:
						topic := req.Topics[0]
						if topic.Name != delayOfOrders || topic.NumPartitions != 4 || topic.ReplicationFactor != -1 {
							s.Errorf("request %+v", topic)
						}
						if !req.ValidateOnly {
							s.topics[topic.Name] = 2
						}
						return &createtopics.Response{Topics: []createtopics.ResponseTopic{{Name: topic.Name, ErrorCode: int16(kafkago.TopicAlreadyExists)}}}, nil
					case *metadata.Request: // the client asks by itself, too
						res := s.layout(req).(*metadata.Response)
						if len(req.TopicNames) == 1 && len(res.Topics[0].Partitions) == 2 {
							if asked++; asked < patience {
								res.Topics[0].Partitions[0].ErrorCode = int16(kafkago.LeaderNotAvailable)
							}
						}
						return res, nil
					}
					return nil, nil
				})
				_, err := s.broker.Open(s.Context(), s.sub)
				if name == "soon" && (err != nil || asked < patience) {
					s.Errorf("after asking for the layout %d times: %v", asked, err)
				}
				if name == "never" && (!errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), delayOfOrders)) {
					s.Errorf("of a topic that gets no leader: %v", err)
				}
			})
		})
	}
}

// While brokers are away a cluster has too few for the replicas of a topic. That passes,
// unless Options.Replication asks for more than the topics have that are read.
func TestCreateWhileBrokersAreAway(t *testing.T) {
	for replication, final := range map[int]bool{0: false, 1: false, 3: true} {
		t.Run(fmt.Sprint("replication ", replication), func(t *testing.T) {
			onBroker(t, func(s *stub) {
				delete(s.topics, delayOfOrders)
				s.options.Replication = replication
				s.connect()
				s.says(answering(func(req *createtopics.Request) protocol.Message {
					return &createtopics.Response{Topics: []createtopics.ResponseTopic{{Name: req.Topics[0].Name, ErrorCode: int16(kafkago.InvalidReplicationFactor)}}}
				}))
				_, err := s.broker.Open(s.Context(), s.sub)
				if !errors.Is(err, kafkago.InvalidReplicationFactor) && !final || errors.Is(err, brokers.ErrMisconfigured) != final || !strings.Contains(err.Error(), delayOfOrders) {
					s.Errorf("Open: %v", err)
				}
				s.says(nil)
			})
		})
	}
}

func TestLogin(t *testing.T) {
	const secret = "s3cret-pa55word"
	for name, refused := range map[string]saslhandshake.Response{
		"wrong password":  {Mechanisms: []string{"PLAIN"}},
		"wrong mechanism": {ErrorCode: int16(kafkago.UnsupportedSASLMechanism), Mechanisms: []string{"SCRAM-SHA-512"}},
	} {
		onBroker(t, func(s *stub) {
			s.options.SASL, s.options.AllowPlaintext = plain.Mechanism{Username: "user", Password: secret}, true
			s.connect()
			s.says(func(req protocol.Message, _ int) (protocol.Message, error) {
				switch req := req.(type) {
				case *saslhandshake.Request:
					return &refused, nil
				case *saslauthenticate.Request:
					if !strings.Contains(string(req.AuthBytes), secret) {
						return nil, io.EOF
					}
					return &saslauthenticate.Response{ErrorCode: int16(kafkago.SASLAuthenticationFailed), ErrorMessage: "Authentication failed"}, nil
				}
				return nil, nil
			})
			_, opened := s.broker.Open(s.Context(), s.sub)
			for call, err := range map[string]error{"Open": opened, "Publish": s.broker.Publish(s.Context(), "orders", brokers.Message{})} {
				if !errors.Is(err, brokers.ErrMisconfigured) || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "Options.SASL") {
					s.Errorf("%s, %s: %v", name, call, err)
				}
			}
		})
	}
}

// A cluster that cannot be reached is named as in Options, and not by topics that its user
// never heard of. A broker does not say whether its listener wants TLS or a login: it ends
// the connection. The hint names the options that may be wrong.
func TestConnectionsThatFail(t *testing.T) {
	const needsLogin = "if it wants a login, set Options.SASL, and "
	login := plain.Mechanism{}
	for name, tt := range map[string]struct {
		options       kafka.Options
		err           error
		misconfigured bool
		text          string
	}{
		"certificate":      {kafka.Options{}, &tls.CertificateVerificationError{Err: errors.New("x")}, true, "Options.TLS"},
		"no TLS":           {kafka.Options{}, fmt.Errorf("dial: %w", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}), true, "Options.TLS"},
		"alert":            {kafka.Options{}, errors.New("remote error: tls: certificate required"), true, "Options.TLS"},
		"expects TLS":      {kafka.Options{}, fmt.Errorf("%w: broker appears to be expecting TLS", io.ErrUnexpectedEOF), true, "Options.TLS"},
		"ends":             {kafka.Options{}, io.EOF, false, needsLogin + "if it wants TLS, set Options.TLS"},
		"ends with TLS":    {kafka.Options{TLS: &tls.Config{}}, io.ErrUnexpectedEOF, false, needsLogin + "if it speaks no TLS, leave Options.TLS out"},
		"ends after login": {kafka.Options{SASL: login, AllowPlaintext: true}, io.EOF, false, "answer: if it wants TLS, set Options.TLS"},
		"ends with both":   {kafka.Options{TLS: &tls.Config{}, SASL: login}, io.EOF, false, "answer: if it speaks no TLS, leave Options.TLS out"},
		"refused":          {kafka.Options{}, syscall.ECONNREFUSED, false, `kafka: open ["orders"]: ask the brokers at one:9092, two:9092 about topics: `},
	} {
		t.Run(name, func(t *testing.T) {
			onBroker(t, func(s *stub) {
				o := tt.options
				o.Brokers, o.Group = []string{"one:9092", "two:9092"}, "g"
				o.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, tt.err }
				b, err := kafka.New(o)
				if err != nil {
					s.Fatal(err)
				}
				defer b.Close(s.Context())
				_, err = b.Open(s.Context(), s.sub)
				if !strings.Contains(fmt.Sprint(err), tt.text) || errors.Is(err, brokers.ErrMisconfigured) != tt.misconfigured || strings.Contains(fmt.Sprint(err), "delay") {
					s.Errorf("Open: %v, want %q", err, tt.text)
				}
				if name == "refused" && (!errors.Is(err, tt.err) || strings.Contains(err.Error(), "set Options")) {
					s.Errorf("Open: %v", err)
				}
			})
		})
	}
}

// Without a coordinator, as on a fresh cluster, a group waits for a while before it
// complains. Open of a reader waits for the group, and says what keeps it from it.
func TestGroupWithoutACoordinator(t *testing.T) {
	const wait = 10 * time.Second
	onBroker(t, func(s *stub) {
		s.says(answering(func(*findcoordinator.Request) protocol.Message {
			return &findcoordinator.Response{ErrorCode: int16(kafkago.GroupCoordinatorNotAvailable)}
		}))
		src, err := s.broker.Open(s.Context(), s.sub)
		if err != nil {
			s.Fatal(err)
		}
		began := time.Now()
		_, err = src.Receive(s.Context(), 1)
		if waited := time.Since(began); !errors.Is(err, kafkago.GroupCoordinatorNotAvailable) || waited != wait {
			s.Errorf("Receive: %v after %v, want that there is no coordinator after %v", err, waited, wait)
		}
		reads("g", "orders")(&s.sub)
		began = time.Now()
		if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, kafkago.GroupCoordinatorNotAvailable) {
			s.Errorf("Open of a reader: %v", err)
		}
		within := time.Since(began) - wait/2
		ctx, cancel := context.WithTimeout(s.Context(), within)
		defer cancel()
		if _, err := s.broker.Open(ctx, s.sub); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `join group "g"`) {
			s.Errorf("Open of a reader, within %v: %v", within, err)
		}
		time.AfterFunc(within, func() { s.broker.Close(s.Context()) })
		if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, brokers.ErrClosed) {
			s.Errorf("Open of a reader that is closed meanwhile: %v", err)
		}
	})
}

// A partition is read from the replica that its leader names, from the leader when that
// fails, and from the replica again later.
func TestNearReplica(t *testing.T) {
	const leader, replica = 1, 2
	asked, failing := map[string]int{}, false // fetches by broker and rack; under the lock of the stub
	onStub(t, func(s *stub) {
		s.options.Rack = "a"
		s.answer = answering(func(req *metadata.Request) protocol.Message {
			s.mu.Lock()
			defer s.mu.Unlock()
			res := s.layout(req).(*metadata.Response)
			res.Brokers = []metadata.ResponseBroker{{NodeID: leader, Host: "far", Port: 9092}, {NodeID: replica, Host: "near", Port: 9092}}
			return res
		})
		s.fetching = func(address string, req *fetch.Request) kmsg.Response {
			near := strings.HasPrefix(address, "near")
			asked[address+" "+req.RackID]++
			part := kmsg.NewFetchResponseTopicPartition()
			switch {
			case near && failing:
				part.ErrorCode, part.PreferredReadReplica = int16(kafkago.ReplicaNotAvailable), -1
			case !near && req.RackID == "a":
				part.PreferredReadReplica = replica
			default:
				return nil
			}
			return fetched(part)
		}
	}, func(s *stub) {
		offset := int64(10)
		comes := func(when, by string, fails bool) {
			s.change(func(s *stub) {
				failing = fails
				s.log = append(s.log, batch{base: offset, records: []record{{offset: offset}}})
			})
			offset++
			s.is("messages "+when, len(s.comes(5*time.Second)), 1)
			s.change(func(*stub) { clear(asked) })
			s.sleep(2 * time.Second)
			s.change(func(*stub) {
				if len(asked) != 1 || asked[by] == 0 {
					s.Errorf("%s the fetches are %v, want those of %q", when, asked, by)
				}
			})
		}
		s.is("messages at first", len(s.comes(5*time.Second)), 10)
		s.change(func(*stub) { s.is("fetches from the leader", asked["far:9092 a"], 1) })
		comes("usually", "near:9092 a", false)
		comes("while the replica fails", "far:9092 ", true)
		s.change(func(*stub) { failing = false })
		s.sleep(2 * time.Minute)
		comes("later", "near:9092 a", false)
	})
}

// What the leader spread over the group is what counts: a topic that was missing then, or
// that no broker told of, belongs to nobody, though it be there again at the first look.
func TestWatch(t *testing.T) {
	both := map[string]int{"orders": 4, "of others": 2, delayOfOrders: 1}
	without := func(topic string) map[string]int {
		return map[string]int{"orders": both["orders"] * map[bool]int{true: 1}[topic != "orders"], "of others": both["of others"] * map[bool]int{true: 1}[topic != "of others"], delayOfOrders: 1}
	}
	for name, tt := range map[string]struct {
		leads  bool
		silent bool           // no broker tells of topics when the leader asks
		spread map[string]int // topics then
		then   map[string]int // and soon afterwards
		later  map[string]int
		joins  int
	}{
		"nothing has changed":                       {false, false, both, both, both, 1},
		"the topic has grown":                       {false, false, both, both, map[string]int{"orders": 5, delayOfOrders: 1}, 2},
		"the leader knew all":                       {true, false, both, both, both, 1},
		"the topic came back before the first look": {true, false, without("orders"), both, both, 2},
		"that of another member came back":          {true, false, without("of others"), both, both, 2},
		"and is away still":                         {true, false, without("of others"), without("of others"), without("of others"), 1},
		"no broker told of topics":                  {true, true, both, both, both, 2},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				s.topics, s.options.CallTimeout = both, time.Second
				if tt.leads {
					other := kmsg.NewConsumerMemberMetadata()
					other.Topics = []string{"of others"}
					s.next = []formed{{beside: other.AppendTo(nil)}}
				}
				silent := false
				s.answer = func(m protocol.Message, _ int) (protocol.Message, error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					switch req := m.(type) {
					case *joingroup.Request:
						if req.MemberID != "" && len(s.joins) == 0 {
							s.topics, silent = tt.spread, tt.silent
						}
					case *syncgroup.Request:
						s.topics, silent = tt.then, false
					case *metadata.Request:
						if silent {
							return nil, errSilence
						}
					}
					return nil, nil
				}
			}, func(s *stub) {
				s.sleep(25 * time.Second)
				s.says(nil)
				s.change(func(s *stub) { s.topics = tt.later })
				s.sleep(25 * time.Second)
				s.change(func(s *stub) { s.is("joins", len(s.joins), tt.joins) })
			})
		})
	}
}
