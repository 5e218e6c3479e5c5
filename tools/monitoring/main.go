// Command monitoring writes the Grafana dashboards in monitoring/dashboards. What
// their panels say comes from the tables of metrics in the documents.
//
// With -live it starts make demo, the retry service and Prometheus instead, and queries
// what the panels show of them.
//
//	go -C tools run ./monitoring [-live FOLDER]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const folder = "monitoring/dashboards"

func main() {
	bin := flag.String("live", "", "query the panels over the commands demo and redrive of `FOLDER`, from the root of the repository")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := error(nil)
	if *bin == "" {
		err = run("..")
	} else {
		err = live(ctx, "..", filepath.Join("..", *bin), os.Stdout)
	}
	if err != nil {
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
