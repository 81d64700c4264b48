package server

import (
	"crypto/tls"
	"net/http"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/apiserver"
)

// operatorPrefix is what the paths of package operator begin with.
const operatorPrefix = "/berth/v1/"

func (s *Server) openAPI() error {
	c := &s.config
	serving, err := c.TLS.ServerConfig(tls.VerifyClientCertIfGiven)
	if err != nil {
		return err
	}
	operators := s.operatorHandler()
	api, err := apiserver.New(apiserver.Config{
		Backend: s, Logs: logs{s}, Streams: streams{s}, Nodes: nodes{s}, Usage: usage{s}, Leases: leases{s}, Planner: planner{s.node.Clock()},
		Listener: c.HTTP, TLS: serving, Users: c.Users, Audit: c.Audit, Admission: c.Admission, Vault: s.vault, ProxyCertificate: c.TLS.PEM, MaxRequests: c.MaxRequests, RootCA: s.rootCA, Services: c.Services,
		Handlers:    map[string]http.Handler{operatorPrefix: operators, "/metrics": operators},
		Ready:       s.checks(),
		Guard:       s.guard,
		LongRunning: []string{operator.PathSnapshot},
		Logger:      c.Logger.Named("api"),
	})
	s.api = api
	return err
}
