package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/audittrail"
	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/handshake"
)

// Server is the API of one server.
type Server struct {
	config Config
	hub    *hub
	users  *users.Users
	trail  *audittrail.Trail // nil: nothing is kept
	// standing asks about what lasts again.
	standing *standing
	// definitions are those of custom kinds.
	definitions *definitions
	turns       *turns
	others      *aggregation
	admission   *admissionChain
	// What is written without requests.
	pods, replicaSets *served
	deploymentStatus  rest.Updater
	generic           *genericapiserver.GenericAPIServer
	logger            hclog.Logger
	gate              handshake.Gate
	// prepared is closed when the handlers are complete.
	prepared chan struct{}
}

// New sets up the API. Nothing is served before Run.
func New(config Config) (_ *Server, err error) {
	installDefinitions()
	installAPIServices()
	capabilities.Setup(true, 0) // the levels of PodSecurity say who may be privileged; otherwise validation would let nobody
	if err := enableFeatures(); err != nil {
		return nil, err
	}
	if err := boundExpressions(); err != nil {
		return nil, fmt.Errorf("bounding what expressions parse: %w", err)
	}
	config, err = config.withDefaults()
	if err != nil {
		return nil, err
	}
	berth, err := berthScheme()
	if err != nil {
		return nil, fmt.Errorf("types of %s: %w", "berth.dev", err)
	}
	accounts := tokens.New(config.Backend, config.Vault)
	rights := newRights(config.Backend, config.Logger.Named("rights"))
	lasting := &standing{rights: rights, backend: config.Backend}
	known, err := users.Open(users.Config{
		Sources: config.Users, Audiences: tokens.Audiences(), Issuer: tokens.Issuer, Accounts: accounts.Authenticator(),
		Joining: joining(config.Backend.View, config.Vault), Logger: config.Logger.Named("users"),
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			known.Close()
		}
	}()
	trail, err := audittrail.Open(config.Audit, config.Logger.Named("audit"))
	if err != nil {
		return nil, err
	}
	inTurn := newTurns()
	chain, err := newAdmissionChain(config, rights, &inTurn.pace)
	if err != nil {
		return nil, fmt.Errorf("setting up admission: %w", err)
	}
	others := newAggregation(config)
	authenticate := newAuthenticator(known)
	lasting.credentials = newCredentials(authenticate, known, config.Guard)
	told := newDeliveries()
	settings := genericConfig(config, authenticate, rights, lasting, others, inTurn, told)
	settings.AdmissionControl, settings.FlowControl = chain.Interface, chain.flow
	counts := newObjectCounts(config.Backend.View, time.Now)
	settings.StorageObjectCountTracker = counts
	if trail != nil {
		settings.AuditBackend, settings.AuditPolicyRuleEvaluator = trail.Backend(), trail.Policy()
	}
	measured := usageScheme()
	setOpenAPI(settings, berth, measured)
	settings.SkipOpenAPIInstallation = true // see describeLate
	completed := settings.Complete(nil)
	generic, err := completed.New("berth", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("setting up the API: %w", err)
	}
	builtIn := map[string]bool{}
	describeLate(generic, completed.OpenAPIConfig, completed.OpenAPIV3Config, &customDescriptions{view: config.Backend.View, builtIn: builtIn}, config.Logger)
	pins := newPins(time.Now)
	watches := newHub(config.Backend, pins)
	watches.guard, watches.deliveries = config.Guard, told
	g := &registry{backend: config.Backend, hub: watches, pins: pins, rights: rights, names: chain.names, vault: config.Vault, leases: config.Leases, counts: counts}
	infos, err := g.install(generic, berth, measured, config, accounts, settings.Authentication.Authenticator, builtIn)
	if err != nil {
		return nil, fmt.Errorf("setting up the API: %w", err)
	}
	custom, err := newCustomResources(g, generic, settings, builtIn, infos[0].StaticOpenAPISpec, newUnserved(generic, infos), others)
	if err != nil {
		return nil, fmt.Errorf("setting up custom kinds: %w", err)
	}
	serveElsewhere(generic, custom)
	discloseKeys(generic, accounts, settings.ExternalAddress)
	// What handlers measure is in Gatherer only once it is registered, which
	// upstream does where it serves /metrics itself.
	apimetrics.Register()
	handlersmetrics.Register()
	for path, handler := range config.Handlers {
		if strings.HasSuffix(path, "/") {
			generic.Handler.NonGoRestfulMux.HandlePrefix(path, handler)
		} else {
			generic.Handler.NonGoRestfulMux.Handle(path, handler)
		}
	}
	s := &Server{
		config: config, hub: g.hub, users: known, trail: trail, standing: lasting, definitions: custom.definitions, turns: inTurn, others: others, admission: chain,
		pods: g.pods, replicaSets: g.replicaSets, deploymentStatus: g.deploymentStatus,
		generic: generic, logger: config.Logger, prepared: make(chan struct{}),
	}
	chain.client.lead(s.Local(admissionUser, access.Masters))
	chain.flows.lead(s.Local(flowUser, access.Controllers, access.ControllerGroup(strings.TrimPrefix(flowUser, "system:controller:"))))
	return s, nil
}

// genericConfig is the configuration of upstream's server.
func genericConfig(config Config, authenticate authenticator.Request, rights *rights, lasting *standing, others *aggregation, inTurn *turns, told *deliveries) *genericapiserver.Config {
	c := genericapiserver.NewConfig(legacyscheme.Codecs)
	c.Authentication.Authenticator = remembered(authenticate)
	c.Authentication.APIAudiences = tokens.Audiences()
	c.Authorization.Authorizer = rights
	c.RuleResolver = rights
	// Nothing calls back, but a configuration must be there.
	c.LoopbackClientConfig = &restclient.Config{Host: "https://" + config.Listener.Addr().String()}
	c.ExternalAddress = config.Listener.Addr().String()
	c.EffectiveVersion = newServedVersion()
	c.RequestTimeout = config.RequestTimeout
	c.LongRunningFunc = longRunning(config.LongRunning, others)
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		// Inside of all the others: who asks is known, and may.
		others.next = newBodies(api, c.MaxRequestBodyBytes, c.LongRunningFunc, legacyscheme.Scheme)
		lasting.next, lasting.longRunning = others, c.LongRunningFunc
		chain := genericapiserver.DefaultBuildHandlerChain(tellUntold(&fairShare{
			next: lasting, longRunning: c.LongRunningFunc, bodyBytes: c.MaxRequestBodyBytes, turns: inTurn, deliveries: told, clients: map[string]*underway{},
		}), c)
		asOthers := tellUntold(chain) // whom one may act as is asked outside of the audit trail, which keeps upstream's answer
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			selectors, err := checkSelectors(req.URL.RawQuery)
			if err == nil {
				err = checkToken(req)
			}
			if err != nil {
				refuse(err, w, req)
				return
			}
			ctx := withUntold(withClass(roles.OncePerRequest(context.WithValue(withShown(req), rightsKey{}, rights))))
			req = req.WithContext(ctx)
			if !known(req, authenticate, selectors) {
				req.URL = &url.URL{Path: req.URL.Path} // what it has asked is not read; it is refused, and accounted for, as any other
				req.RequestURI = req.URL.RequestURI()
			}
			if req.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
				asOthers.ServeHTTP(w, req)
				return
			}
			chain.ServeHTTP(w, req)
		})
	}
	c.EnableProfiling = false
	_, own := config.Handlers["/metrics"]
	c.EnableMetrics = !own
	for _, check := range config.Ready {
		c.AddReadyzChecks(healthz.NamedCheck(check.Name, func(*http.Request) error { return check.Do() }))
	}
	return c
}

// longRunning tells the requests that no timeout ends.
func longRunning(paths []string, others *aggregation) request.LongRunningRequestCheck {
	basic := filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("log", "exec", "attach", "portforward", "proxy"),
	)
	return func(r *http.Request, info *request.RequestInfo) bool {
		for _, p := range paths {
			if r.URL.Path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(r.URL.Path, p) {
				return true
			}
		}
		return basic(r, info) || others.takenOver(r)
	}
}

// install adds every group, and says which.
func (g *registry) install(
	s *genericapiserver.GenericAPIServer, berth, measured *runtime.Scheme, config Config, accounts *tokens.Accounts, who authenticator.Request,
	builtIn map[string]bool,
) ([]genericapiserver.APIGroupInfo, error) {
	coreInfo, events, err := g.coreGroup(config, accounts)
	if err != nil {
		return nil, err
	}
	if err := s.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &coreInfo); err != nil {
		return nil, err
	}
	berthInfo, err := g.berthGroup(berth, config.Planner)
	if err != nil {
		return nil, err
	}
	infos := append(reviewGroups(who, g.rights), eventsGroup(events), berthInfo, g.usageGroup(measured, config.Usage))
	for _, group := range []func() (genericapiserver.APIGroupInfo, error){
		g.appsGroup,
		g.batchGroup,
		g.discoveryGroup,
		g.schedulingGroup,
		g.coordinationGroup,
		g.policyGroup,
		g.nodeGroup,
		g.rolesGroup,
		g.storageGroup,
		g.certificatesGroup,
		g.autoscalingGroup,
		g.admissionGroup,
		g.flowGroup,
		g.networkingGroup,
		g.devicesGroup,
		func() (genericapiserver.APIGroupInfo, error) { return g.definitionsGroup(builtIn) },
		func() (genericapiserver.APIGroupInfo, error) { return g.aggregationGroup(builtIn) },
	} {
		info, err := group()
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	pointers := make([]*genericapiserver.APIGroupInfo, len(infos))
	for i := range infos {
		pointers[i] = &infos[i]
		builtIn[infos[i].PrioritizedVersions[0].Group] = true
	}
	for _, info := range append(pointers, &coreInfo) {
		g.names.learn(info)
	}
	err = s.InstallAPIGroups(pointers...)
	return append(infos, coreInfo), err
}

// Run serves until the context ends. Then every watch ends, and requests in
// flight have Config.ShutdownTimeout to do so.
func (s *Server) Run(ctx context.Context) error {
	prepared := s.generic.PrepareRun()
	close(s.prepared)
	defer s.generic.Destroy()
	httpServer, err := newHTTPServer(prepared.Handler, s.config.TLS, s.logger)
	if err != nil {
		return err
	}
	watching, endWatches := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatches()
	var following sync.WaitGroup
	following.Go(func() { s.hub.run(watching) })
	defer s.users.Close()
	keep := func(name string, loop func(ctx context.Context)) {
		following.Go(func() { s.config.Guard.Keep(watching, "API/"+name, loop) })
	}
	keep("users", s.users.Run)
	keep("standing", s.standing.run)
	keep("credentials", s.standing.credentials.run)
	keep("credentials of elsewhere", s.standing.credentials.runFar)
	keep("definitions", s.definitions.run)
	keep("aggregation", s.others.run)
	keep("admission", s.admission.run)
	defer close(s.admission.ended)
	if s.trail != nil {
		if err := s.trail.Run(); err != nil {
			return fmt.Errorf("the audit trail: %w", err)
		}
		defer s.trail.End() // when nothing is asked any more
	}
	s.generic.RunPostStartHooks(watching)
	s.logger.Info("serving the API", "address", s.config.Listener.Addr().String(), "kubernetes", kubernetesGitVersion)
	err = serve(ctx, httpServer, s.config.Listener, &s.gate, s.config.ShutdownTimeout, endWatches)
	endWatches()
	following.Wait()
	return err
}

// Gatherer gives what Kubernetes' libraries measure in this process, for a
// /metrics that serves more than that.
func Gatherer() prometheus.Gatherer { return legacyregistry.DefaultGatherer }

// RefusedHandshakes is how many connections were cut unheard, because too many
// had not yet shown who they are.
func (s *Server) RefusedHandshakes() int64 { return s.gate.Refused() }

// LostAccounts counts requests of which the audit trail should tell and cannot.
func (s *Server) LostAccounts() int64 {
	if s.trail == nil {
		return 0
	}
	return s.trail.Lost()
}

// Addr is the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.config.Listener.Addr() }
