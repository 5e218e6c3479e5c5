// Package config reads the configuration file of the command redrive: which
// brokers there are, which topics their dead letters come from and may go back
// to, and where the letters are kept.
//
// The file is YAML without anchors, aliases and tags, of at most 256 KiB. Reading
// is strict: a key that does not exist, a key that is there twice and a value of
// the wrong kind are faults, never ignored. [Parse] reports all faults at once,
// each with its line, its column and what to write instead.
//
// # Secrets
//
// No secret stands in the file. What takes one names an environment variable or
// another file, and is read when it is used; a literal one, or a URL with a
// password in it, is a fault. No error and no [Setting] has a secret in it, nor
// a value from the place where a secret belongs.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/goccy/go-yaml/token"
)

// Config is a configuration that has no fault.
type Config struct {
	// Brokers are the message brokers, by name: letters, digits, "-" and "_",
	// at most 64. The store knows letters by the name of their broker: what is
	// stored under an old name is not sent under a new one.
	Brokers map[string]*Broker `yaml:"brokers" required:"unless service"`

	// Topics are the topics whose dead letters are handled. Nothing is read
	// from, or sent to, what is not named here.
	Topics []Topic `yaml:"topics" unset:"none"`

	// Budgets are the retry budgets that workers share through Redis, by a name that no
	// broker has. Only `redrive doctor` looks at them.
	Budgets map[string]*Redis `yaml:"budgets" unset:"none"`

	// Store is where collected letters are kept.
	Store Store `yaml:"store" required:"unless service"`

	// Collect bounds what is collected.
	Collect Collect `yaml:"collect" unset:"as below"`

	// Retention is how long the store keeps letters that are done with. What
	// nobody has dealt with is kept until somebody does.
	Retention Retention `yaml:"retention" unset:"as below"`

	// Serve is for redrive serve.
	Serve Serve `yaml:"serve" unset:"as below"`

	// Service is for redrive service. It needs nothing else.
	Service Service `yaml:"service" unset:"as below"`

	file  string
	lines map[string]*token.Position // of the keys in the file
}

// Kinds of brokers.
const (
	RabbitMQ = "rabbitmq"
	Kafka    = "kafka"
	SQS      = "sqs"
	Memory   = "memory"
)

var kinds = []string{RabbitMQ, Kafka, SQS, Memory}

// Broker says how to reach a broker. Which keys there are depends on its kind.
type Broker struct {
	// Kind is `rabbitmq`, `kafka` or `sqs`; or `memory`, which lives and dies with
	// the process, for demonstrations.
	Kind string `yaml:"kind" required:"true" one:"rabbitmq kafka sqs memory"`

	// URLs are the endpoints of one cluster, such as
	// `amqps://rabbit-1.example.com/vhost`, without user and password.
	URLs []string `yaml:"urls" kinds:"rabbitmq" required:"true"`

	// Addresses are some brokers of the cluster, `host:port`.
	Addresses []string `yaml:"addresses" kinds:"kafka" required:"true"`

	// User logs in, together with `password`.
	User string `yaml:"user" kinds:"rabbitmq kafka" unset:"no login on Kafka, guest on RabbitMQ"`

	// Password is that of `user`, read anew for each connection.
	Password *Secret `yaml:"password" kinds:"rabbitmq kafka" unset:"as without user"`

	// Mechanism is how `user` logs in: `plain`, `scram-sha-256` or
	// `scram-sha-512`.
	Mechanism string `yaml:"mechanism" kinds:"kafka" default:"plain" one:"plain scram-sha-256 scram-sha-512"`

	// TLS encrypts the connections. On RabbitMQ `amqps` URLs do, and this says
	// with which certificates; on Kafka it does, so write `{}` for those of the
	// system.
	TLS *TLS `yaml:"tls" kinds:"rabbitmq kafka" unset:"plain connections on Kafka, the certificates of the system on RabbitMQ"`

	// AllowPlaintext lets a password travel to another machine over a plain
	// connection, where others can read it.
	AllowPlaintext bool `yaml:"allow_plaintext" kinds:"rabbitmq kafka" unset:"refused"`

	// Group is the consumer group that dead letters and receipts are read with.
	// No worker may be in it.
	Group string `yaml:"group" kinds:"kafka" default:"redrive-collect"`

	// Rack is where the workers run, by the names of `broker.rack`: that of their
	// `Options.Rack`. `redrive doctor` then says what keeps them from reading there.
	Rack string `yaml:"rack" kinds:"kafka" unset:"the workers set none"`

	// Region is the region of AWS.
	Region string `yaml:"region" kinds:"sqs" unset:"what the environment and the profile say"`

	// Profile is one of the files that the AWS tools share. Credentials come from
	// there, or from the environment, or from the machine's role.
	Profile string `yaml:"profile" kinds:"sqs" unset:"what the environment says"`

	// Endpoint is the address of another server than AWS, such as
	// `http://localhost:9324`.
	Endpoint string `yaml:"endpoint" kinds:"sqs" unset:"AWS"`

	// Management is the address of the management API, such as
	// `https://rabbit-1.example.com:15671`, which shows what AMQP does not. `user`
	// needs the tag `monitoring`.
	Management string `yaml:"management" kinds:"rabbitmq" unset:"policies, members and alarms are not looked at"`

	// Verify says that workers create nothing, `Options.Verify`: what is missing is
	// refused then.
	Verify bool `yaml:"verify" kinds:"rabbitmq kafka" unset:"workers create what is missing"`

	// Create says that workers create what is missing, `Options.Create`.
	Create bool `yaml:"create" kinds:"sqs" unset:"they do not: what is missing is refused"`

	// Prefix begins the names of the queues or topics that retries go through:
	// that of the workers, `Options.Prefix`.
	Prefix string `yaml:"prefix" kinds:"rabbitmq kafka" default:"redrive"`

	// MessageLimit is the largest message that is sent: that of the workers,
	// `Options.MessageLimit`.
	MessageLimit Bytes `yaml:"message_limit" kinds:"rabbitmq kafka" unset:"16 MiB on RabbitMQ, 1,000,000 bytes on Kafka"`

	// Secret is the keys that the workers sign retries with, `Options.Secret`: the
	// first signs, all are accepted. Workers with keys take what is sent back
	// without one for new messages.
	Secret []Key `yaml:"secret" kinds:"rabbitmq kafka sqs" unset:"none"`
}

// TLS says which certificates to trust and to show, in PEM files. What is shown is
// read anew for each connection.
type TLS struct {
	// CA is the authorities to trust.
	CA File `yaml:"ca" unset:"those of the system"`

	// Cert is the certificate to show, with those that lead to its authority.
	Cert File `yaml:"cert" unset:"none"`

	// Key is the private key of `cert`.
	Key File `yaml:"key" unset:"none"`

	// ServerName is the name that the certificate of the server must have.
	ServerName string `yaml:"server_name" unset:"the host of the address"`
}

// Topic is one whose dead letters are handled.
type Topic struct {
	// Name is the topic, or queue, that workers receive from. Letters are sent
	// back there.
	Name string `yaml:"name" required:"true"`

	// Broker is the name of its broker.
	Broker string `yaml:"broker" required:"true"`

	// Dead are the topics or queues with its dead letters. Topics may share
	// them.
	Dead []string `yaml:"dead" required:"true"`

	// Groups are the consumer groups whose letters may be sent back to them.
	Groups []string `yaml:"groups" unset:"none; only on Kafka"`

	// Receipts is the topic or queue where workers say what became of what was
	// sent back, `consumer.Config.Receipts`.
	Receipts string `yaml:"receipts" unset:"none: whether a letter was handled is not known"`

	// Collect takes dead letters out of `dead` into the store. On Kafka they stay
	// in the log, too.
	Collect bool `yaml:"collect" unset:"off: they can be looked at, and stay where they are"`

	// Rate is the most letters a second that are sent back.
	Rate int `yaml:"rate" unset:"what the job says"`

	// Retry is what the retry policy of the workers asks of the broker at most.
	Retry Retry `yaml:"retry" unset:"the default policy"`

	// Retention replaces that of all topics, key by key.
	Retention Retention `yaml:"retention" unset:"that of all topics"`
}

// Retry is what a retry policy asks of a broker at most.
type Retry struct {
	// Attempts is the most runs that are counted, `retry.Policy.MaxAttempts`.
	Attempts int `yaml:"attempts" default:"10"`

	// MaxDelay is the longest delay before a retry: the longest of `Backoff.Cap`,
	// `MaxRetryAfter` and `EnvironmentDelay` of the policy.
	MaxDelay Wait `yaml:"max_delay" default:"15m"`

	// MaxAge is how long after its first failure a message may be retried,
	// `retry.Policy.MaxAge`.
	MaxAge Wait `yaml:"max_age" default:"24h"`
}

// Redis is a server of Redis or Valkey.
type Redis struct {
	// Redis is its address, `host:port`: of a cluster that of any node.
	Redis string `yaml:"redis" required:"true"`

	// User logs in, together with `password`.
	User string `yaml:"user" unset:"the user default of Redis"`

	// Password is that of the user.
	Password *Secret `yaml:"password" unset:"no login"`

	// TLS encrypts the connection: write `{}` for the certificates of the system.
	TLS *TLS `yaml:"tls" unset:"a plain connection"`

	// AllowPlaintext lets the password travel to another machine over a plain
	// connection, where others can read it.
	AllowPlaintext bool `yaml:"allow_plaintext" unset:"refused"`
}

// Store is where collected letters are kept.
type Store struct {
	// URL is a file for SQLite, such as `letters.db`, or a server and a
	// database of Postgres, such as
	// `postgres://redrive@db.example.com/letters?sslmode=verify-full` or
	// `host=db.example.com user=redrive dbname=letters sslmode=verify-full`,
	// without a password. Environment variables such as `PGHOST` and service
	// files apply, as for other clients of Postgres.
	URL string `yaml:"url" required:"true"`

	// Password is that of the user in `url`. Only for Postgres.
	Password *Secret `yaml:"password" unset:"what Postgres clients use: PGPASSWORD, ~/.pgpass"`

	// AllowPlaintext lets password and letters travel to another machine over a
	// connection that need not be encrypted, which is what `sslmode` allows
	// unless it is `require`, `verify-ca` or `verify-full`. If `url` has
	// several hosts, this applies to each of them.
	AllowPlaintext bool `yaml:"allow_plaintext" unset:"refused"`
}

// Collect bounds what is collected. At a limit the rest stays in the broker.
type Collect struct {
	// FreeDisk is how much of the disk of an SQLite store must stay free, from
	// `1%` to `90%`.
	FreeDisk Percent `yaml:"free_disk" default:"10%"`

	// MaxLetters is the most letters that the store may hold.
	MaxLetters int `yaml:"max_letters" default:"1000000"`
}

// Retention is how long the store keeps letters that are done with, from `1h`, in
// the durations of Prometheus, such as `30d` or `1d12h`.
type Retention struct {
	// Confirmed is for letters that were sent back and handled.
	Confirmed time.Duration `yaml:"confirmed" unset:"30d"`

	// Returned is for letters that were sent back and failed again: a newer one
	// stands for them.
	Returned time.Duration `yaml:"returned" unset:"30d"`

	// Discarded is for letters that were discarded: they can be restored for as
	// long.
	Discarded time.Duration `yaml:"discarded" unset:"30d"`
}

// Serve is for redrive serve.
type Serve struct {
	// Listen is the address that pages, metrics and the API are on, `host:port`.
	// One that other machines can reach needs `token`.
	Listen string `yaml:"listen" default:"127.0.0.1:7420"`

	// Token is what callers must show. It has 16 characters or more.
	Token *Token `yaml:"token" unset:"none"`

	Web
}

// Web says how redrive serve and redrive service accept connections.
type Web struct {
	// TLS encrypts the connections, with TLS 1.2 or newer. An address that other
	// machines can reach needs it, or `behind_proxy`.
	TLS *Certificate `yaml:"tls" unset:"plain connections"`

	// BehindProxy says that callers connect through a proxy. The proxy encrypts
	// their connections, because these carry tokens. All connections may come
	// from the address of the proxy.
	BehindProxy bool `yaml:"behind_proxy" unset:"callers connect directly, and one address may have half of the connections"`

	// Connections is how many connections may be open at a time.
	Connections int `yaml:"connections" unset:"a third of the files that the process may have open, from 16 to 2048"`
}

// Certificate is the certificate that a server shows. Its files are read again
// while the server runs, so that they can be replaced.
type Certificate struct {
	// Cert is a PEM file with the certificate and the intermediate certificates
	// up to its authority.
	Cert File `yaml:"cert" required:"true"`

	// Key is a PEM file with the private key of `cert`.
	Key File `yaml:"key" required:"true"`
}

// Service is for redrive service.
type Service struct {
	// Listen is the address that the API and metrics are on, `host:port`. One that
	// other machines can reach needs `tokens`.
	Listen string `yaml:"listen" default:"127.0.0.1:7430"`

	// Store is where tasks, policies and attempts are kept, with the keys of
	// [store](#store). A database of Postgres may be that of the letters; a file may
	// not.
	Store *Store `yaml:"store" unset:"the SQLite file service.db"`

	// Schedule is a Redis that keeps what is due when, with the keys of
	// [budgets](#budgets), for several processes on one store. It may lose everything:
	// no task is lost with it. Services with stores of their own may share it.
	Schedule *Redis `yaml:"schedule" unset:"each process keeps it in memory"`

	// Tokens are what callers must show, by tenant. Each has 16 characters or more. A
	// tenant may have several, so that they can be replaced.
	Tokens map[string][]Token `yaml:"tokens" unset:"none: everybody on this machine may act as every tenant"`

	// MetricsToken is what readers of /metrics must show, which tells about all
	// tenants. It has 16 characters or more.
	MetricsToken *Token `yaml:"metrics_token" unset:"/metrics is open to this machine where there are no tokens, and closed where there are"`

	// Allow is what may be called: hosts such as `api.example.com`, `*.example.com` or
	// `https://api.example.com:8443`, and networks that are not public, such as
	// `10.1.0.0/16`, or `127.0.0.0/8` for this machine. With networks alone, every
	// host on a public address may be called, too.
	Allow []string `yaml:"allow" unset:"every host on a public address"`

	// Bodies is where bodies above 16 KiB are kept.
	Bodies Bodies `yaml:"bodies" unset:"a directory beside an SQLite file, such as service.db.bodies; with Postgres, in the store up to 64 KiB, and larger ones are refused"`

	// Dead is where tasks go that are exhausted.
	Dead *Dead `yaml:"dead" unset:"nowhere: they stay in the store"`

	// Retention is how long tasks are kept that have ended, with their logs, from `1h`.
	// Until then the idempotency key names the task. With `dead`, a task that is
	// exhausted is kept until its letter is confirmed, too, and its letter can be sent
	// back as long as it is kept.
	Retention time.Duration `yaml:"retention" default:"30d"`

	// Concurrency is the most calls at a time. One tenant alone makes three quarters of
	// them at most.
	Concurrency int `yaml:"concurrency" default:"64"`

	// Quota bounds the tasks, bodies and policies of each tenant.
	Quota Quota `yaml:"quota" unset:"as below"`

	// Quotas replace keys of `quota` for the tenants that they name.
	Quotas map[string]*Quota `yaml:"quotas" unset:"none"`

	Web
}

// Quota bounds the tasks, bodies and policies of a tenant of the retry service.
type Quota struct {
	// Tasks is how many tasks may be PENDING or IN_FLIGHT.
	Tasks int `yaml:"tasks" unset:"1000000"`

	// Bytes is how many bytes the bodies above 16 KiB may have, of all tasks
	// that are PENDING, IN_FLIGHT or EXHAUSTED.
	Bytes Bytes `yaml:"bytes" unset:"10GiB"`

	// Policies is how many versions of policies the tenant may have.
	Policies int `yaml:"policies" unset:"1000"`
}

// Bodies is where large bodies are kept. All processes on one store have the same.
type Bodies struct {
	// Directory is the name of a directory. Bodies are in a folder of it that has the ID
	// of the store, so services with stores of their own may share it.
	Directory string `yaml:"directory" unset:"see s3"`

	// S3 is a bucket, which services with stores of their own may share likewise.
	S3 *S3 `yaml:"s3" unset:"see directory"`
}

// S3 is a bucket of S3, or of a server that speaks its protocol.
type S3 struct {
	// Bucket is its name.
	Bucket string `yaml:"bucket" required:"true"`

	// Prefix begins the keys of all objects, followed by a slash and the ID of the store.
	Prefix string `yaml:"prefix" unset:"none"`

	// Region is the region of AWS.
	Region string `yaml:"region" unset:"what the environment and the profile say"`

	// Profile is one of the files that the AWS tools share. Credentials come from
	// there, or from the environment, or from the machine's role.
	Profile string `yaml:"profile" unset:"what the environment says"`

	// Endpoint is the address of another server than AWS, such as
	// `http://localhost:9000`.
	Endpoint string `yaml:"endpoint" unset:"AWS"`
}

// Dead is where tasks go that are exhausted, as dead letters.
type Dead struct {
	// Broker is the name of a broker.
	Broker string `yaml:"broker" required:"true"`

	// Topic is the topic or queue of that broker for dead letters.
	Topic string `yaml:"topic" required:"true"`

	// Origin is the topic or queue that letters say they come from. What is sent back
	// there becomes a task again.
	Origin string `yaml:"origin" default:"retry-tasks"`

	// Group is the consumer group of Kafka that the service receives with what is sent
	// back. No other worker may be in it, and a topic of `topics` with this origin has it
	// among its `groups`.
	Group string `yaml:"group" default:"redrive-service"`
}

// File names of [Find].
const (
	Variable    = "REDRIVE_CONFIG"
	DefaultFile = "redrive.yaml"
)

// Find returns the name of the configuration file: named, or else what the
// environment variable REDRIVE_CONFIG says, or else redrive.yaml.
func Find(named string) string { return cmp.Or(named, os.Getenv(Variable), DefaultFile) }

// Load reads and parses a file.
func Load(file string) (*Config, error) {
	text, err := read(file, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration: %w: write it, or name another with --config or %s", err, Variable)
	}
	if err != nil {
		return nil, fmt.Errorf("the configuration cannot be read: %w", err)
	}
	return Parse(file, text)
}

// Parse reads a configuration. The name of its file is for errors, and names of
// files in it are relative to that file's directory. Parse itself reads no file
// and no environment variable. The error joins every *[Fault], in the order of
// the lines.
func Parse(file string, text []byte) (*Config, error) {
	c := &Config{file: file, lines: map[string]*token.Position{}}
	d := &decoder{Config: c, meant: map[string]bool{}}
	if root := d.parse(text); root != nil {
		d.decode("", root, reflect.ValueOf(c).Elem())
		d.check()
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	c.Retention.fill(Retention{kept, kept, kept})
	for i := range c.Topics {
		c.Topics[i].Retention.fill(c.Retention)
	}
	if c.Service.Store == nil {
		c.Service.Store = &Store{URL: "service.db"}
	}
	c.Service.Quota.fill(Quota{1_000_000, 10 << 30, 1000})
	for _, q := range c.Service.Quotas {
		q.fill(c.Service.Quota)
	}
	return c, nil
}

const kept = 30 * day // unless the file says something else

func (r *Retention) fill(all Retention) {
	r.Confirmed = cmp.Or(r.Confirmed, all.Confirmed)
	r.Returned = cmp.Or(r.Returned, all.Returned)
	r.Discarded = cmp.Or(r.Discarded, all.Discarded)
}

func (q *Quota) fill(all Quota) {
	q.Tasks = cmp.Or(q.Tasks, all.Tasks)
	q.Bytes = cmp.Or(q.Bytes, all.Bytes)
	q.Policies = cmp.Or(q.Policies, all.Policies)
}

// File is the name of the configuration file.
func (c *Config) File() string { return c.file }

// read returns a whole file, unless it is larger than max bytes.
func read(file string, max int) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(max)+1))
	if err == nil && len(text) > max {
		err = fmt.Errorf("%s has more than %d bytes", file, max)
	}
	return text, err
}

// beside makes a name that stands in a file relative to that file's directory.
func beside(file, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(file), name)
}
