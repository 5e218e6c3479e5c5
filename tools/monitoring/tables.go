package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// metric is a row of a table of metrics.
type metric struct {
	kind   string // counter, gauge or histogram
	labels []string
	says   string
}

// table has the metrics of one kind of process, by name.
type table map[string]metric

// The pages with a table of metrics, from the root of the repository.
const (
	workers = "docs/reference/metrics.md"
	letters = "docs/reference/cli.md"
	service = "docs/reference/retry-service.md"
)

var (
	row   = regexp.MustCompile("(?m)^\\| `((?:redrive|retry)_\\w+)` \\| (counter|gauge|histogram) \\|([^|]*)\\| (.*) \\|$")
	quote = regexp.MustCompile("`([^`]+)`")
)

// readTable reads the table of metrics of a page.
func readTable(root, page string) (table, error) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	t := table{}
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		m := metric{kind: match[2], says: strings.ReplaceAll(match[4], "`", "")}
		for _, label := range quote.FindAllStringSubmatch(match[3], -1) {
			m.labels = append(m.labels, label[1])
		}
		t[match[1]] = m
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("%s has no table of metrics", page)
	}
	return t, nil
}
