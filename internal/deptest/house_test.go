// Package deptest keeps the arrows between the packages pointing down. It has
// tests only: one reads the imports of every Go file of the module and holds
// them against the house below, the other builds an application on the core
// and looks at what its go.mod had to take in.
package deptest

// row says what a package may import besides the standard library and
// golang.org/x. Paths are relative to the module.
type row struct {
	imports []string
	tests   []string // what its tests may import in addition
	sdk     string   // the one module of somebody else that it may import
}

// house has a row for every package that others can import, and for
// internal/wire, which those packages share.
var house = map[string]row{
	"brokers":        {},
	"classify":       {},
	"retry":          {imports: []string{"classify"}},
	"visibility":     {},
	"internal/wire":  {imports: []string{"brokers"}},
	"dlq":            {imports: []string{"brokers", "classify", "internal/wire"}},
	"brokers/memory": {imports: []string{"brokers", "internal/wire"}, tests: []string{"brokers/brokertest"}},
	"brokers/rabbitmq": {
		imports: []string{"brokers", "internal/wire"},
		tests:   []string{"brokers/brokertest", "integration/livetest"},
		sdk:     "github.com/rabbitmq/amqp091-go",
	},
	"brokers/brokertest": {
		imports: []string{"brokers"},
		tests:   []string{"brokers/memory"},
	},
	"consumer": {
		imports: []string{"brokers", "classify", "retry", "visibility", "dlq"},
		tests:   []string{"brokers/memory", "consumer/consumertest"},
	},
	"consumer/consumertest": {
		imports: []string{"consumer", "brokers", "brokers/memory", "dlq", "retry", "classify"},
	},
}

// closed are the trees that nobody outside the module can import, or that are
// not meant to be imported: they need no row.
var closed = []string{"internal", "cmd", "examples", "integration"}

// measuring are the commands that may import testing, because they run
// benchmarks and virtual time; no user's program contains them.
var measuring = []string{"internal/figures", "internal/proof"}
