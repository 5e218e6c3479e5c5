package sqs

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// TestInspect plants each fault that Open does not look for, beside what is missing.
func TestInspect(t *testing.T) {
	const (
		weeks = "1209600"
		key   = "alias/shop"
	)
	denies := func(operation, queue string) sqstest.Fault {
		return sqstest.Fault{Operation: operation, Queue: queue, Code: "AccessDenied"}
	}
	type settings map[string]string
	for name, tt := range map[string]struct {
		jobs, dead settings
		missing    bool // both of them
		create     bool
		topic      string
		pair       string // the dead-letter queue
		faults     []sqstest.Fault
		off        time.Duration
		want       []string // parts of findings, one each
		fails      bool
	}{
		"silence is no right":            {faults: []sqstest.Fault{{Operation: "DeleteMessageBatch", Cut: true}}, fails: true},
		"nothing":                        {},
		"FIFO, and nothing":              {topic: "jobs.fifo", pair: "dead.fifo", faults: []sqstest.Fault{denies("SendMessageBatch", "jobs.fifo")}},
		"a timeout that nobody goes by":  {jobs: settings{"VisibilityTimeout": "1"}},
		"letters keep the age they had":  {dead: settings{nameRetention: "345600"}, want: []string{`noted "dead": MessageRetentionPeriod is 345600, and should be 1209600: what SQS itself moves here from "jobs" keeps its age`}},
		"there is no more than 14 days":  {jobs: settings{nameRetention: weeks}, dead: settings{nameRetention: weeks}},
		"messages that anybody can read": {jobs: settings{nameManaged: "false"}, want: []string{`noted "jobs": SqsManagedSseEnabled is false, and should be true`}},
		"letters that anybody can read":  {dead: settings{nameManaged: "false"}, want: []string{`noted "dead": SqsManagedSseEnabled is false, and should be true`}},
		"a key for messages alone":       {jobs: settings{nameKey: key}, want: []string{`noted "dead": KmsMasterKeyId is not set, and should be alias/shop: messages of "jobs" are encrypted`}},
		"a key for both":                 {jobs: settings{nameKey: key}, dead: settings{nameKey: "alias/other", nameManaged: "false"}},
		"a standard queue for letters of FIFO": {topic: "jobs.fifo", pair: "dead", want: []string{`blocking "dead": FifoQueue is false, and should be true: it is the dead-letter queue of "jobs.fifo"`,
			`noted "jobs.fifo": RedrivePolicy is not set`}},
		"rights of a reader and a sender": {faults: []sqstest.Fault{denies("ReceiveMessage", "jobs"), denies("DeleteMessageBatch", "jobs"), denies("ChangeMessageVisibilityBatch", "jobs"), denies("SendMessageBatch", "")}, want: []string{
			`blocking "dead": the identity's rights is not sqs:SendMessage, and should be sqs:SendMessage: `,
			`blocking "jobs": the identity's rights is not sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility, sqs:SendMessage, and should be`}},
		"one right": {faults: []sqstest.Fault{denies("DeleteMessageBatch", "jobs")}, want: []string{
			`To mend it: aws iam put-role-policy --role-name ROLE --policy-name 'redrive-jobs' --policy-document '{"Statement":[{"Action":["sqs:DeleteMessage"],"Effect":"Allow","Resource":"arn:aws:sqs:us-east-1:123456789012:jobs"}],"Version":"2012-10-17"}'`}},
		"nobody creates what is missing": {missing: true, want: []string{
			`blocking "dead": there is no such queue, or none for this identity, and Options.Create does not let Run create it; a queue of another account needs its URL. To mend it: aws sqs create-queue --queue-name 'dead' --attributes '{"MessageRetentionPeriod":"1209600"}'`,
			`blocking "jobs": there is no such queue`}},
		"workers create what is missing": {missing: true, create: true, want: []string{`noted "dead": there is no such queue`, `noted "jobs": there is no such queue, or none for this identity: the first worker that starts creates it`}},
		"a clock ahead":                  {off: time.Minute, want: []string{`: clock is 1m0s ahead of this machine, and should be within a second`}},
		"a clock behind":                 {off: -time.Minute, want: []string{`is 59s behind this machine, and should be within a second`}},
	} {
		topic, pair := "jobs", "dead"
		if tt.topic != "" {
			topic, pair = tt.topic, tt.pair
		}
		playAs(t, name, topic, Options{}, func(s *scene) {
			if !tt.missing {
				dead, jobs := settings{nameRetention: weeks}, settings{}
				if isFIFO(topic) == isFIFO(pair) {
					jobs[namePolicy] = policy("arn:aws:sqs:us-east-1:123456789012:"+pair, leastReceives(topic, 10))
				}
				for name, value := range tt.dead {
					dead[name] = value
				}
				for name, value := range tt.jobs {
					jobs[name] = value
				}
				s.create(pair, dead)
				s.create(topic, jobs)
				s.publish("a")
			}
			for _, f := range tt.faults {
				s.server.Inject(f)
			}
			config := s.server.Config()
			next := config.HTTPClient
			config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
				answer, err := next.Do(r)
				if err == nil {
					answer.Header.Set("Date", time.Now().Add(tt.off).UTC().Format(http.TimeFormat))
				}
				return answer, err
			})
			b, err := New(Options{Config: config, Create: tt.create})
			if err != nil {
				s.Fatal(err)
			}
			created, sent := s.server.Count("CreateQueue"), s.server.Queue(topic).Sent
			s.sub.DeadLetters = map[string]string{topic: pair}
			found, err := b.Inspect(s.Context(), s.sub)
			if (err != nil) != tt.fails || len(found) != len(tt.want) {
				s.Fatalf("found %v, error %v, want %q", found, err, tt.want)
			}
			for i, f := range found {
				if text := f.Severity.String() + " " + f.String(); !strings.Contains(text, tt.want[i]) || f.Why == "" || f.Fix == "" || f.See == "" {
					s.Errorf("found\n%s\nwant\n%s", text, tt.want[i])
				}
			}
			s.demand("CreateQueue", created)
			if now := s.server.Messages(topic); !tt.missing && (len(now) != 1 || now[0].Receives != 0 || s.server.Queue(topic).Sent != sent) {
				s.Errorf("Inspect has changed the queue: %+v", now)
			}
		})
	}
}

// command makes the test binary the AWS CLI for a script.
const command = "REDRIVE_TEST_AWS_CLI"

// TestTopologyIsEnough runs what Topology prints, and then finds nothing, and again,
// which changes nothing.
func TestTopologyIsEnough(t *testing.T) {
	if os.Getenv(command) != "" {
		runCLI(t)
		return
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no shell")
	}
	server := sqstest.NewServer(sqstest.Options{})
	defer server.Close()
	b, err := New(Options{Config: server.Config(), Endpoint: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	sub := func(topic, dead string) brokers.Subscription {
		return brokers.Subscription{Topics: []string{topic}, DeadLetters: map[string]string{topic: dead}, Receipts: "told", MaxAttempts: 10, MaxAge: 5 * 24 * time.Hour, MaxDelay: time.Minute}
	}
	subs := []brokers.Subscription{sub("jobs", "dead"), sub("jobs.fifo", "dead.fifo"), sub("more", "dead")}
	script, err := b.Topology(subs...)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		run := exec.CommandContext(t.Context(), shell, "-e")
		run.Stdin = strings.NewReader(`aws() { "` + self + `" -test.run='^TestTopologyIsEnough$' -- "$@"; }` + "\n" + script)
		run.Env = append(os.Environ(), command+"=true")
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s\nof\n%s", err, out, script)
		}
		for _, sub := range subs {
			if found, err := b.Inspect(t.Context(), sub); err != nil || len(found) > 0 {
				t.Errorf("found %v, error %v, after\n%s", found, err, script)
			}
		}
	}
	if n := strings.Count(script, "create-queue"); n != 6 {
		t.Errorf("%d commands that create, want one for each of 6 queues:\n%s", n, script)
	}
}

// runCLI is as much of the AWS CLI as the script needs.
func runCLI(t *testing.T) {
	args := os.Args[slices.Index(os.Args, "--")+1:]
	flag := func(name string) string {
		i := slices.Index(args, "--"+name)
		if i < 0 || i+1 == len(args) {
			t.Fatalf("no --%s in %q", name, args)
		}
		return args[i+1]
	}
	client := awssqs.New(awssqs.Options{Region: flag("region"), BaseEndpoint: aws.String(flag("endpoint-url")), Credentials: anyCredentials()})
	answer := ""
	switch name := args[1]; name {
	case "create-queue":
		attributes := map[string]string{}
		err := json.Unmarshal([]byte(flag("attributes")), &attributes)
		if err == nil {
			_, err = client.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: aws.String(flag("queue-name")), Attributes: attributes})
		}
		if err != nil {
			t.Fatal(err)
		}
	case "get-queue-url":
		got, err := client.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: aws.String(flag("queue-name"))})
		if err != nil {
			t.Fatal(err)
		}
		answer = *got.QueueUrl
	case "get-queue-attributes":
		got, err := client.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: aws.String(flag("queue-url")), AttributeNames: []types.QueueAttributeName{types.QueueAttributeName(flag("attribute-names"))}})
		if err != nil {
			t.Fatal(err)
		}
		answer = got.Attributes[flag("attribute-names")]
	default:
		t.Fatalf("aws sqs %s is not in the script", name)
	}
	if _, err := os.Stdout.WriteString(answer + "\n"); err != nil {
		t.Fatal(err)
	}
	os.Exit(0) // before the test binary says that it passed
}

func TestTopologyOfWhatCannotBe(t *testing.T) {
	b, err := New(Options{Config: aws.Config{Region: "eu-central-1", Credentials: anyCredentials()}})
	if err != nil {
		t.Fatal(err)
	}
	far := brokers.Subscription{Topics: []string{"https://sqs.eu-central-1.amazonaws.com/210987654321/jobs"}, MaxAttempts: 3}
	if text, err := b.Topology(far); err != nil || text != "# https://sqs.eu-central-1.amazonaws.com/210987654321/jobs: create it in its own account\n" {
		t.Errorf("error %v, script\n%s", err, text)
	}
	for _, sub := range []brokers.Subscription{{}, {Topics: []string{"jobs"}, DeadLetters: map[string]string{"jobs": "dead.fifo"}}} {
		if text, err := b.Topology(sub); !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("%+v: error %v, script\n%s", sub, err, text)
		}
	}
}
