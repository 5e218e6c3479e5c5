// Command monitoring writes the Grafana dashboards in monitoring/dashboards. What
// their panels say comes from the tables of metrics in the documents.
//
//	go -C tools run ./monitoring
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

const folder = "monitoring/dashboards"

func main() {
	if err := run(".."); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// run writes the dashboards of the repository at root.
func run(root string) error {
	all, err := dashboards(root)
	if err != nil {
		return err
	}
	for name, d := range all {
		text, err := encode(d)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func encode(d dashboard) ([]byte, error) {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	to.SetIndent("", "  ")
	if err := to.Encode(d); err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", d.UID, err)
	}
	return b.Bytes(), nil
}
