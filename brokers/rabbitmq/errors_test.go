package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

func TestExplain(t *testing.T) {
	plain := errors.New("no route to host")
	for _, tt := range []struct {
		name          string
		err           error
		misconfigured bool
		part          string
	}{
		{"not of the broker", plain, false, "no route to host"},
		{"closed", amqp.ErrClosed, false, "not open"},
		{"going down", &amqp.Error{Code: 320, Reason: "CONNECTION_FORCED - broker forced connection closure"}, false, "CONNECTION_FORCED"},
		{"end of the login", amqp.ErrCredentials, false, "lost during the login"},
		{"end of the login, at the vhost", amqp.ErrVhost, false, "lost during the login"},
		{"login", &amqp.Error{Code: 403, Reason: "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."}, true, "check user and password"},
		{"rights", &amqp.Error{Code: 403, Reason: "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'u'"}, true, "grant the user the rights"},
		{"vhost", &amqp.Error{Code: 530, Reason: "NOT_ALLOWED - vhost nope not found"}, true, "create the vhost"},
		{"vhost that is down", &amqp.Error{Code: 530, Reason: "NOT_ALLOWED - vhost '/' is down"}, false, "is down"},
		{"too many connections", &amqp.Error{Code: 530, Reason: "NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (1) is reached"}, false, "limit"},
		{"missing", &amqp.Error{Code: 404, Reason: "NOT_FOUND - no queue 'q' in vhost '/'"}, true, "create what is missing"},
		{"without a leader", &amqp.Error{Code: 404, Reason: "NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible"}, false, "no leader"},
		{"exclusive", &amqp.Error{Code: 405, Reason: "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'"}, true, "use another name"},
		{"another exchange", &amqp.Error{Code: 406, Reason: "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is 'topic'"}, true, "delete it when it is empty"},
		{"another failed precondition", &amqp.Error{Code: 406, Reason: "PRECONDITION_FAILED - unknown delivery tag 7"}, false, "unknown delivery tag"},
		{"too many queues", amqp.ErrChannelMax, true, "raise channel_max"},
		{"too old", &amqp.Error{Code: 540, Reason: "NOT_IMPLEMENTED - x"}, true, "3.10 or newer"},
		{"internal error", &amqp.Error{Code: 541, Reason: "INTERNAL_ERROR"}, false, "rabbit_fifo_dlx_sup"},
	} {
		got := explain(tt.err)
		if errors.Is(got, brokers.ErrMisconfigured) != tt.misconfigured || !strings.Contains(got.Error(), tt.part) {
			t.Errorf("%s: explain = %v, want it to say %q, and ErrMisconfigured %v", tt.name, got, tt.part, tt.misconfigured)
		}
		if missing := tt.name == "missing"; errors.Is(got, brokers.ErrNotFound) != missing {
			t.Errorf("%s: explain = %v, want ErrNotFound %v", tt.name, got, missing)
		}
		if !strings.HasPrefix(tt.name, "end of the login") && !errors.Is(got, tt.err) {
			t.Errorf("%s: the cause is not in %v", tt.name, got)
		}
	}
}

func TestConnectError(t *testing.T) {
	uri := amqp.URI{Scheme: "amqps", Host: "mq.example", Port: 5671, Username: "bob", Password: "hunter2", Vhost: "/v"}
	for _, tt := range []struct {
		err           error
		misconfigured bool
		says          string
	}{
		{errors.New("dial tcp: connection refused"), false, "connection refused"},
		{&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, true, "check Options.TLS"},
		{fmt.Errorf("dial: %w", tls.RecordHeaderError{Msg: "no TLS"}), true, "check Options.TLS"},
		{errors.New("remote error: tls: certificate required"), true, "check Options.TLS"},
		{&amqp.Error{Code: 403, Reason: "ACCESS_REFUSED - Login was refused"}, true, "check user and password"},
	} {
		got := connectError(uri, tt.err)
		if errors.Is(got, brokers.ErrMisconfigured) != tt.misconfigured || !errors.Is(got, tt.err) || !strings.Contains(got.Error(), tt.says) {
			t.Errorf("%v: %v, want it to say %q, and ErrMisconfigured %v", tt.err, got, tt.says, tt.misconfigured)
		}
		if !strings.Contains(got.Error(), `amqps://mq.example:5671 vhost "/v"`) || strings.Contains(got.Error(), "hunter2") {
			t.Errorf("%v: it names the wrong endpoint, or a password", got)
		}
	}
}

func TestUntilLed(t *testing.T) {
	away := &amqp.Error{Code: 404, Reason: "NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible"}
	missing := &amqp.Error{Code: 404, Reason: "NOT_FOUND - no queue 'q' in vhost '/'"}
	for _, tt := range []struct {
		name  string
		errs  []error // of the first calls; the last one stands for all that follow
		limit time.Duration
		calls int
		want  error
	}{
		{"at once", []error{nil}, time.Hour, 1, nil},
		{"missing", []error{missing}, time.Hour, 1, missing},
		{"elected", []error{away, away, nil}, time.Hour, 3, nil},
		{"found missing later", []error{away, missing}, time.Hour, 2, missing},
		{"never elected", []error{away}, time.Hour, elections, away},
		{"the link ends first", []error{away}, electionPause * 3 / 2, 2, away},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			calls := 0
			err := untilLed(ctx, func() error {
				calls++
				return tt.errs[min(calls, len(tt.errs))-1]
			})
			if calls != tt.calls || err != tt.want {
				t.Errorf("%s: %d calls, %v; want %d and %v", tt.name, calls, err, tt.calls, tt.want)
			}
		})
	}
}

const preconditionFailed = "PRECONDITION_FAILED - "

func TestDifferenceIn(t *testing.T) {
	sent := amqp.Table{"x-delivery-limit": int64(20), "x-queue-type": "quorum", "x-single-active-consumer": true}
	for _, tt := range []struct {
		reason string
		name   string
		want   any
		ok     bool
	}{
		{"inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/': received '20' but current is '3'", "x-delivery-limit", int64(3), true},
		{"inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/': received the value '20' of type 'long' but current is none", "x-delivery-limit", nil, true},
		{"inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received none but current is the value '7' of type 'signedint'", "x-max-length", int64(7), true},
		{"inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received 'true' but current is 'false'", "x-single-active-consumer", false, true},
		{"inequivalent arg 'x-other' for queue 'q' in vhost '/': received none but current is the value 'true' of type 'bool'", "x-other", true, true},
		{"inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'", "x-queue-type", "classic", true},
		{"inequivalent arg 'x-dead-letter-exchange' for queue 'q but current is 'x'' in vhost '/': received none but current is the value 'it's' of type 'longstr'", "x-dead-letter-exchange", "it's", true},
		{"inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'", "durable", "false", true},
		{"inequivalent arg 'x-weights' for queue 'q' in vhost '/': received none but current is the value '[a]' of type 'array'", "", nil, false},
		{"inequivalent arg 'x-delivery-limit' for queue 'qqqqqqqqqq", "", nil, false}, // cut off after 255 bytes
		{"inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is 'topic'", "", nil, false},
		{"unknown delivery tag 7", "", nil, false},
	} {
		name, got, ok := differenceIn(fmt.Errorf("declare: %w", &amqp.Error{Code: 406, Reason: preconditionFailed + tt.reason}), sent)
		if ok != tt.ok || ok && (name != tt.name || got != tt.want) {
			t.Errorf("%s:\ngot %s %#v %v, want %s %#v %v", tt.reason, name, got, ok, tt.name, tt.want, tt.ok)
		}
	}
	if _, _, ok := differenceIn(errors.New("inequivalent arg 'x' for queue 'q': but current is none"), nil); ok {
		t.Error("read a difference from an error that is not the broker's")
	}
}

func FuzzDifferenceIn(f *testing.F) {
	f.Add("inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received none but current is the value '7' of type 'long'")
	f.Add("inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'")
	f.Add("inequivalent arg '' for queue ' but current is the value '' of type ")
	args := names{"redrive"}.topicArgs("q", deliveryLimit)
	f.Fuzz(func(t *testing.T, reason string) {
		_, value, ok := differenceIn(&amqp.Error{Code: 406, Reason: reason}, args)
		if !ok {
			return
		}
		switch value.(type) {
		case nil, string, bool, int64:
		default:
			t.Errorf("%q: the value is a %T", reason, value)
		}

	})
}
