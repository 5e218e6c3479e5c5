// Package web is the server that redrive serve and redrive service share:
// metrics, health, a bound on connections, and certificates that can be replaced
// while it runs.
package web
