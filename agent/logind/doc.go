// Package logind holds up the end of the machine until its pods have ended, as far as systemd's logind lets it. It must never hold
// it up for longer than it was told to.
package logind
