// Package gallery is the specification of what the pipeline does in incidents:
// [Incidents] lists what happens to a dependency, and what must become of the
// messages meanwhile. Each runs with the default consumer.Config on
// brokers/memory, in virtual time: hours take seconds.
//
//	go test ./lab/gallery                             checks every incident
//	go test ./lab/gallery -run 'Incidents/orders'     checks some, by name
//	make gallery                                      prints the table, and writes docs/explanation/gallery.md
package gallery
