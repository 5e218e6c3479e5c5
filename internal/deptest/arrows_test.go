package deptest

import (
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestArrowsPointDown(t *testing.T) {
	root := moduleRoot(t)
	pkgs, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"operate", "lab"} { // above all of this one
		others, err := load(filepath.Join(root, module))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range others {
			p.dir = path.Join(module, p.dir)
			pkgs = append(pkgs, p)
		}
	}
	for _, v := range violations(pkgs, house) {
		t.Error(v)
	}
	if dirs := missing(pkgs, house); len(dirs) > 0 {
		t.Errorf("rows of the house without a package: %s", strings.Join(dirs, ", "))
	}
}

func TestViolations(t *testing.T) {
	ours := func(dir string) string { return modulePath + "/" + dir }
	tests := []struct {
		name string
		pkg  pkg
		want string // a part of the only violation; "" for none
	}{
		{"arrow upwards", pkg{dir: "classify", imports: []string{ours("retry")}}, "classify imports retry"},
		{"arrow to a longer path", pkg{dir: "consumer", imports: []string{ours("brokers/memory")}}, "consumer imports brokers/memory"},
		{"arrow to the module's root", pkg{dir: "dlq", imports: []string{modulePath}}, "dlq imports " + modulePath},
		{"look-alike of the extended library", pkg{dir: "dlq", imports: []string{"golang.org/xtra"}}, "dlq imports golang.org/xtra"},
		{"look-alike of this module", pkg{dir: "dlq", imports: []string{modulePath + "-fork/brokers"}}, "-fork/brokers"},
		{"third party in a test", pkg{dir: "brokers", testImports: []string{"github.com/stretchr/testify/require"}}, "brokers (test) imports github.com/stretchr"},
		{"testing in production", pkg{dir: "brokers", imports: []string{"testing"}}, "brokers imports testing"},
		{"testing in a test kit", pkg{dir: "brokers/brokertest", imports: []string{"testing", ours("brokers")}}, ""},
		{"lab in the command", pkg{dir: "operate/cmd/redrive", testImports: []string{ours("lab/proof")}}, "operate/cmd/redrive imports lab/proof"},
		{"internal package in the lab", pkg{dir: "lab/proof", imports: []string{ours("internal/text")}}, "lab/proof imports internal/text"},
		{"internal package of the lab", pkg{dir: "lab/bench/kafka", imports: []string{ours("lab/bench/internal/meter")}}, ""},
		{"test with too much", pkg{dir: "dlq", testImports: []string{ours("consumer")}}, "dlq (test) imports consumer"},
		{"SDK of another", pkg{dir: "brokers/rabbitmq", imports: []string{"github.com/aws/smithy-go"}}, "brokers/rabbitmq imports github.com/aws/smithy-go"},
		{"package without a row", pkg{dir: "brokers/other"}, "brokers/other has no row"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := violations([]pkg{tt.pkg}, house)
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("violations = %q, want none", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("violations = %q, want one with %q", got, tt.want)
			}
		})
	}
}
