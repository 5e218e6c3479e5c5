// Package deptest keeps the arrows between the packages pointing down. It has
// tests only: one reads the imports of every Go file of the modules of the library,
// the command and the lab, and holds them against the house below. Another builds an
// application on the core and looks at what its go.mod had to take in.
package deptest

// row says what a package may import besides the standard library and
// golang.org/x. Paths are relative to the module.
type row struct {
	imports []string
	tests   []string // what its tests may import in addition
	sdk     []string // the modules of somebody else that it may import
}

// house has a row for every package that others can import, for what of internal
// those packages share, and for what the command is made of.
var house = map[string]row{
	".":                        {tests: []string{"brokers", "brokers/memory", "classify", "consumer", "dlq"}}, // an overview without code
	"brokers":                  {imports: []string{"brokers/inspect"}},
	"brokers/inspect":          {},
	"classify":                 {},
	"retry":                    {imports: []string{"classify", "settings"}},
	"retry/budget":             {imports: []string{"settings", "retry/budget/internal/pace"}},
	"retry/breaker":            {imports: []string{"retry/flow"}},
	"retry/flow":               {},
	"visibility":               {imports: []string{"internal/pulse"}},
	"health":                   {tests: []string{"brokers", "brokers/memory", "consumer"}},
	"internal/pulse":           {},
	"settings":                 {},
	"internal/handling":        {},
	"redisguard":               {sdk: []string{"github.com/redis/go-redis"}},
	"internal/text":            {},
	"brokers/wire":             {imports: []string{"brokers", "internal/text"}},
	"dlq":                      {imports: []string{"brokers", "brokers/wire", "internal/text"}, tests: []string{"classify", "internal/deadletter"}},
	"internal/deadletter":      {imports: []string{"brokers", "classify", "dlq", "internal/text"}},
	"brokers/internal/adapter": {imports: []string{"brokers", "brokers/inspect", "brokers/wire", "health"}},
	"brokers/memory":           {imports: []string{"brokers", "brokers/wire", "brokers/internal/adapter"}, tests: []string{"brokers/brokertest"}},
	"brokers/rabbitmq": {
		imports: []string{"brokers", "brokers/inspect", "brokers/wire", "brokers/internal/adapter", "health"},
		tests:   []string{"brokers/brokertest", "integration/livetest", "integration/rabbitmqtest", "consumer", "dlq", "retry"},
		sdk:     []string{"github.com/rabbitmq/amqp091-go"},
	},
	"brokers/kafka": {
		imports: []string{"brokers", "brokers/inspect", "brokers/wire", "brokers/internal/adapter", "brokers/kafka/internal/cluster", "health", "internal/text"},
		tests:   []string{"brokers/brokertest", "integration/livetest"},
		sdk:     []string{"github.com/segmentio/kafka-go", "github.com/twmb/franz-go/pkg/kmsg", "github.com/klauspost/compress"},
	},
	"brokers/kafka/internal/cluster": {
		imports: []string{"brokers", "brokers/inspect"},
		sdk:     []string{"github.com/segmentio/kafka-go", "github.com/twmb/franz-go/pkg/kmsg"},
	},
	"brokers/sqs": {
		imports: []string{"brokers", "brokers/inspect", "brokers/wire", "brokers/internal/adapter", "health"},
		tests:   []string{"brokers/brokertest", "brokers/sqs/sqstest", "integration/livetest", "classify", "consumer", "dlq", "retry"},
		sdk:     []string{"github.com/aws"},
	},
	"brokers/sqs/sqstest": {sdk: []string{"github.com/aws"}},
	"brokers/brokertest": {
		imports: []string{"brokers"},
		tests:   []string{"brokers/memory"},
	},
	"consumer": {
		imports: []string{"brokers", "brokers/inspect", "classify", "retry", "retry/budget", "retry/flow", "visibility", "dlq", "settings", "health", "internal/deadletter", "internal/handling", "internal/pulse", "internal/text"},
		tests:   []string{"brokers/memory", "consumer/consumertest"},
	},
	"httpretry": {
		imports: []string{"classify", "consumer", "retry", "retry/breaker", "retry/budget", "retry/flow", "settings", "internal/handling"},
		tests:   []string{"brokers", "brokers/memory", "consumer/consumertest", "dlq"},
	},
	"idempotency": {
		imports: []string{"brokers", "classify", "consumer", "settings", "internal/text"},
		tests:   []string{"brokers/memory", "consumer/consumertest", "dlq", "retry", "idempotency/storetest"},
	},
	"idempotency/storetest": {imports: []string{"brokers", "consumer", "idempotency"}},
	"idempotency/redisstore": {
		imports: []string{"idempotency", "redisguard"},
		sdk:     []string{"github.com/redis/go-redis"},
		tests:   []string{"brokers", "brokers/memory", "consumer", "dlq", "integration/redistest"},
	},
	"idempotency/sqlstore": {imports: []string{"idempotency"}},
	"metrics": {
		imports: []string{"brokers", "classify", "consumer", "dlq", "health", "retry", "retry/breaker", "retry/budget", "retry/flow", "settings"},
		sdk:     []string{"github.com/prometheus/client_golang"},
		tests:   []string{"brokers/memory"},
	},
	"tracing": {
		imports: []string{"brokers", "classify", "consumer", "dlq", "retry"},
		tests: []string{
			"brokers/kafka", "brokers/memory", "brokers/rabbitmq", "brokers/sqs", "brokers/sqs/sqstest",
			"integration/goldentest", "integration/livetest", "retry/budget", "retry/flow", "settings", "tracing/sampling",
		},
		sdk: []string{"go.opentelemetry.io/otel", "github.com/aws", "github.com/rabbitmq/amqp091-go", "github.com/segmentio/kafka-go"}, // all but the first in tests
	},
	"tracing/sampling":           {sdk: []string{"go.opentelemetry.io/otel"}},
	"retry/budget/internal/pace": {},
	"retry/budget/redisbudget": {
		imports: []string{"retry/budget", "retry/budget/internal/pace", "settings", "redisguard"},
		sdk:     []string{"github.com/redis/go-redis"},
		tests:   []string{"integration/livetest", "integration/redistest"},
	},
	"operate/config": {
		imports: []string{"operate/internal/text", "operate/internal/pgaddress", "operate/internal/typo"},
		tests:   []string{"integration/goldentest"},
		sdk:     []string{"github.com/goccy/go-yaml", "github.com/prometheus/common"},
	},
	"operate/internal/pgaddress": {sdk: []string{"github.com/jackc/pgx"}},
	"operate/cmd/redrive/internal/term": {
		imports: []string{"operate/internal/text"},
		sdk:     []string{"github.com/rivo/uniseg"},
	},
	"operate/foreign": {
		imports: []string{"brokers", "dlq", "operate/internal/text"},
		tests:   []string{"brokers/wire", "integration/goldentest"},
	},
	"operate/collect": {
		imports: []string{"brokers", "operate/foreign", "operate/store", "retry", "settings", "operate/internal/text"},
		tests:   []string{"brokers/memory", "dlq"},
	},
	"operate/internal/serve": {
		imports: []string{"brokers", "operate/internal/text", "retry", "operate/collect", "operate/config", "operate/internal/web", "operate/job", "operate/store"},
		sdk:     []string{"github.com/prometheus/client_golang", "github.com/goccy/go-yaml"},
		tests:   []string{"brokers/memory", "brokers/sqs", "brokers/sqs/sqstest", "consumer", "dlq", "operate/internal/breaktest"},
	},
	"operate/internal/web": {sdk: []string{"github.com/prometheus/client_golang"}, tests: []string{"operate/internal/certtest"}},
	"operate/internal/sqldb": {
		imports: []string{"operate/internal/pgaddress"},
		sdk:     []string{"modernc.org/sqlite", "github.com/jackc/pgx"},
	},
	"operate/store": {
		imports: []string{"brokers", "dlq", "operate/internal/sqldb"},
		tests:   []string{"integration/goldentest", "integration/postgrestest", "operate/internal/breaktest", "operate/internal/storetest"},
	},
	"operate/service": {
		imports: []string{"brokers", "classify", "httpretry", "operate/internal/text", "operate/internal/sqldb", "operate/internal/typo", "operate/internal/web", "operate/service/bodies", "retry", "retry/breaker", "retry/budget"},
		sdk:     []string{"github.com/google/uuid", "github.com/prometheus/client_golang", "github.com/santhosh-tekuri/jsonschema"}, // the last in tests
		tests:   []string{"integration/postgrestest", "integration/goldentest", "operate/internal/breaktest", "operate/internal/storetest", "operate/service/scheduletest"},
	},
	"operate/service/redisschedule": {
		imports: []string{"operate/service", "redisguard"},
		sdk:     []string{"github.com/redis/go-redis"},
		tests:   []string{"integration/livetest", "integration/redistest", "operate/service/scheduletest"},
	},
	"operate/service/scheduletest": {imports: []string{"operate/service"}},
	"operate/service/bodies": {
		imports: []string{"operate/service/bodies/internal/sweep"},
		tests:   []string{"operate/service/bodies/bodiestest"},
	},
	"operate/service/bodies/bodiestest": {imports: []string{"operate/service/bodies"}},
	"operate/service/bodies/s3bodies": {
		imports: []string{"operate/service/bodies", "operate/service/bodies/internal/sweep"},
		sdk:     []string{"github.com/aws"},
	},
	"operate/internal/retries": {
		imports: []string{"brokers", "classify", "consumer", "dlq", "operate/internal/text", "operate/internal/web", "operate/service", "operate/service/bodies"},
		sdk:     []string{"github.com/prometheus/client_golang"},
		tests:   []string{"brokers/memory"},
	},
	"operate/job": {
		imports: []string{"brokers", "brokers/wire", "classify", "dlq", "settings", "operate/internal/text", "operate/store", "retry"},
		tests:   []string{"brokers/memory", "consumer"},
	},
	"consumer/consumertest": {
		imports: []string{"consumer", "brokers", "brokers/memory", "dlq", "retry", "classify"},
	},
}

// closed are the trees that nobody outside the module can import, or that are
// not meant to be imported: they need no row.
var closed = []string{"internal", "operate", "examples", "integration", "lab"}
