//! The macro by which a wrapping fabric forwards methods to the inner one.

/// Forwards the named methods to the field `inner`, within `impl Fabric` or `impl Port`. `control`
/// stands for all methods of a `Fabric` except `open`, `common` for those of a `Port` that are seldom
/// changed.
///
/// ```ignore
/// impl Port for Watched {
///     farside_fabric::forward!(common, post_receives, poll, arm, waiter, connect, import, link_events,
///         close, may_land);
///     fn post(&mut self, work: &[Work<'_>]) -> Posted { ... }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($($name:ident),* $(,)?) => { $($crate::forward!(@ $name);)* };
    (@ control) => {
        $crate::forward!(
            name,
            host,
            numa_node,
            lease_ns,
            time_ns,
            capabilities,
            register,
            deregister,
            register_memory
        );
    };
    (@ common) => {
        $crate::forward!(
            disarm,
            create_receive_queue,
            destroy_receive_queue,
            accept,
            refuse,
            path,
            address,
            trouble,
            reach,
            peer_process
        );
    };
    (@ name) => {
        fn name(&self) -> &'static str {
            self.inner.name()
        }
    };
    (@ capabilities) => {
        fn capabilities(&self) -> $crate::base::Capabilities {
            self.inner.capabilities()
        }
    };
    (@ host) => {
        fn host(&self) -> Option<::std::net::SocketAddr> {
            self.inner.host()
        }
    };
    (@ numa_node) => {
        fn numa_node(&self) -> Option<u32> {
            self.inner.numa_node()
        }
    };
    (@ lease_ns) => {
        fn lease_ns(&self) -> u64 {
            self.inner.lease_ns()
        }
    };
    (@ time_ns) => {
        fn time_ns(&self) -> u64 {
            self.inner.time_ns()
        }
    };
    (@ register) => {
        fn register(&self, spec: &$crate::RegionSpec) -> Result<$crate::Region, $crate::FabricError> {
            self.inner.register(spec)
        }
    };
    (@ register_memory) => {
        fn register_memory(
            &self,
            memory: $crate::Arena,
            access: $crate::base::Access,
        ) -> Result<$crate::Region, $crate::FabricError> {
            self.inner.register_memory(memory, access)
        }
    };
    (@ deregister) => {
        fn deregister(&self, region: $crate::base::RegionId) -> Result<(), $crate::FabricError> {
            self.inner.deregister(region)
        }
    };
    (@ open) => {
        fn open(
            &self,
            spec: &$crate::PortSpec,
        ) -> Result<Box<dyn $crate::Port>, $crate::FabricError> {
            self.inner.open(spec)
        }
    };
    (@ post) => {
        fn post(&mut self, work: &[$crate::base::Work<'_>]) -> $crate::Posted {
            self.inner.post(work)
        }
    };
    (@ post_receives) => {
        fn post_receives(&mut self, receives: &[$crate::base::Receive]) -> $crate::Posted {
            self.inner.post_receives(receives)
        }
    };
    (@ poll) => {
        fn poll(&mut self, out: &mut [$crate::base::Completion]) -> usize {
            self.inner.poll(out)
        }
    };
    (@ link_events) => {
        fn link_events(&mut self, out: &mut Vec<$crate::LinkEvent>) {
            self.inner.link_events(out);
        }
    };
    (@ arm) => {
        fn arm(&mut self) -> bool {
            self.inner.arm()
        }
    };
    (@ disarm) => {
        fn disarm(&mut self) {
            self.inner.disarm();
        }
    };
    (@ waiter) => {
        fn waiter(&self) -> ::std::sync::Arc<dyn $crate::Waiter> {
            self.inner.waiter()
        }
        $crate::forward!(@ wake_also);
    };
    (@ wake_also) => {
        fn wake_also(&mut self, waiter: ::std::sync::Arc<dyn $crate::Waiter>) {
            self.inner.wake_also(waiter);
        }
    };
    (@ address) => {
        fn address(&self) -> Option<String> {
            self.inner.address()
        }
    };
    (@ create_receive_queue) => {
        fn create_receive_queue(
            &mut self,
            depth: usize,
        ) -> Result<$crate::base::ReceiveQueueId, $crate::FabricError> {
            self.inner.create_receive_queue(depth)
        }
    };
    (@ destroy_receive_queue) => {
        fn destroy_receive_queue(
            &mut self,
            queue: $crate::base::ReceiveQueueId,
        ) -> Result<(), $crate::FabricError> {
            self.inner.destroy_receive_queue(queue)
        }
    };
    (@ connect) => {
        fn connect(
            &mut self,
            to: &str,
            hello: &[u8],
            receives: $crate::base::ReceiveQueueId,
        ) -> Result<$crate::base::LinkId, $crate::FabricError> {
            self.inner.connect(to, hello, receives)
        }
    };
    (@ accept) => {
        fn accept(
            &mut self,
            link: $crate::base::LinkId,
            reply: &[u8],
            receives: $crate::base::ReceiveQueueId,
        ) -> Result<(), $crate::FabricError> {
            self.inner.accept(link, reply, receives)
        }
    };
    (@ refuse) => {
        fn refuse(
            &mut self,
            link: $crate::base::LinkId,
            reason: &[u8],
        ) -> Result<(), $crate::FabricError> {
            self.inner.refuse(link, reason)
        }
    };
    (@ import) => {
        fn import(
            &mut self,
            link: $crate::base::LinkId,
            token: &$crate::base::RegionToken,
        ) -> Result<$crate::base::RemoteRegionId, $crate::FabricError> {
            self.inner.import(link, token)
        }
        fn try_import(
            &mut self,
            link: $crate::base::LinkId,
            token: &$crate::base::RegionToken,
        ) -> Result<Option<$crate::base::RemoteRegionId>, $crate::FabricError> {
            self.inner.try_import(link, token)
        }
    };
    (@ reach) => {
        fn reach(
            &self,
            link: $crate::base::LinkId,
            region: $crate::base::RemoteRegionId,
        ) -> Option<$crate::Reached> {
            self.inner.reach(link, region)
        }
        fn reach_word(
            &self,
            link: $crate::base::LinkId,
            region: $crate::base::RemoteRegionId,
            offset: u64,
        ) -> Option<$crate::SharedWord> {
            self.inner.reach_word(link, region, offset)
        }
    };
    (@ close) => {
        fn close(&mut self, link: $crate::base::LinkId) {
            self.inner.close(link);
        }
    };
    (@ may_land) => {
        fn may_land(&mut self, link: $crate::base::LinkId) -> bool {
            self.inner.may_land(link)
        }
    };
    (@ peer_process) => {
        fn peer_process(&self, link: $crate::base::LinkId) -> $crate::PeerProcess {
            self.inner.peer_process(link)
        }
    };
    (@ path) => {
        fn path(&self, link: $crate::base::LinkId) -> String {
            self.inner.path(link)
        }
    };
    (@ trouble) => {
        fn trouble(&self, link: $crate::base::LinkId) -> Option<String> {
            self.inner.trouble(link)
        }
    };
}
