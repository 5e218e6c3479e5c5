// Package web has what the servers of the command redrive share: a bound on their
// connections, certificates that may be replaced while a server runs, and a cheap
// check of health.
package web
