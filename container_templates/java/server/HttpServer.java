package transship.server;

import com.sun.management.UnixOperatingSystemMXBean;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.ServerChannel;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.epoll.EpollIoHandler;
import io.netty.channel.epoll.EpollServerDomainSocketChannel;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.unix.DomainSocketAddress;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.flow.FlowControlHandler;
import io.netty.handler.timeout.IdleState;
import io.netty.handler.timeout.IdleStateEvent;
import io.netty.handler.timeout.IdleStateHandler;
import java.lang.management.ManagementFactory;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * HTTP/1.1. One thread reads requests and writes responses of all connections; others run the calls. The requests of a connection are
 * answered in order. A client that disconnects is noticed even if further requests of its lie unread, because epoll reports it.
 */
final class HttpServer {
    private static final int MAX_BODY_BYTES = 1 << 30;
    private static final int WORKER_IDLE_S = 60;
    private static final int BACKLOG = 1024;
    /** Connections beyond the limit that are told that the server is busy; any more are closed at once. */
    private static final int MOST_REFUSED = 64;

    /**
     * What connections may take.
     *
     * @param connections so many are answered
     * @param idleMs one is closed on which nothing comes for so long, and nothing is being answered
     * @param unreadMs one is closed whose client takes nothing of an answer for so long, or twice that; as long as it takes some, an
     *     answer may take any time
     */
    record Limits(int connections, long idleMs, long unreadMs) {
        /** The share of the descriptors that this process may have that connections get. */
        private static final int SHARE = 2;
        private static final long MOST_CONNECTIONS = 4096;

        static Limits ofProcess() {
            long descriptors = ManagementFactory.getOperatingSystemMXBean() instanceof UnixOperatingSystemMXBean system ? system.getMaxFileDescriptorCount() : 0;
            return new Limits((int) Math.max(1, Math.min(descriptors / SHARE, MOST_CONNECTIONS)), 600_000, 600_000);
        }
    }

    /** A response. */
    record Response(int status, String contentType, ByteBuf body) {}

    /** Answers the requests of one connection, one after the other. */
    interface Answering {
        /** Whether the request takes no time, so that the thread of all connections may answer it. */
        boolean isImmediate(FullHttpRequest request);

        Response answer(FullHttpRequest request, Connection connection) throws UserFunction.Cancelled;

        /** The response to a request for which, or for whose connection, there is no room. */
        Response refuse();
    }

    private final Answering answering;
    private final IoEventLoopGroup loop = new MultiThreadIoEventLoopGroup(1, EpollIoHandler.newFactory());
    private final List<Channel> listeners = new ArrayList<>();
    private final AtomicInteger running = new AtomicInteger();
    private final AtomicInteger open = new AtomicInteger();
    private final ThreadPoolExecutor workers;
    private final Limits limits;

    /**
     * A server that does not listen yet.
     *
     * @param threads calls that run at a time; further ones wait
     * @param waiting calls that may wait
     */
    HttpServer(Answering answering, int threads, int waiting, Limits limits) {
        this.answering = answering;
        this.limits = limits;
        workers = new ThreadPoolExecutor(threads, threads, WORKER_IDLE_S, TimeUnit.SECONDS, new LinkedBlockingQueue<>(waiting));
        workers.allowCoreThreadTimeOut(true);
    }

    void listen(SocketAddress address) throws InterruptedException {
        Class<? extends ServerChannel> kind = address instanceof DomainSocketAddress ? EpollServerDomainSocketChannel.class : EpollServerSocketChannel.class;
        ServerBootstrap bootstrap = new ServerBootstrap().group(loop).channel(kind).option(ChannelOption.SO_BACKLOG, BACKLOG)
            // The next request is read after the last was answered.
            .childOption(ChannelOption.AUTO_READ, false)
            .childHandler(new ChannelInitializer<Channel>() {
                @Override
                protected void initChannel(Channel channel) {
                    // Each looks at what was taken since it looked last, so one cannot do for both.
                    IdleStateHandler unread = new IdleStateHandler(true, 0, limits.unreadMs(), 0, TimeUnit.MILLISECONDS);
                    IdleStateHandler idle = new IdleStateHandler(0, 0, limits.idleMs(), TimeUnit.MILLISECONDS);
                    channel.pipeline().addLast(unread, idle, new HttpServerCodec(), new HttpObjectAggregator(MAX_BODY_BYTES), new FlowControlHandler(), new Connection());
                }
            });
        listeners.add(bootstrap.bind(address).sync().channel());
    }

    /** What watches the sockets of all connections. */
    IoEventLoopGroup loop() {
        return loop;
    }

    /** Whether a request is being answered. */
    boolean isAnswering() {
        return running.get() > 0;
    }

    /** Takes no more connections, and waits until no request is being answered, at most so long. */
    void stop(long seconds) throws InterruptedException {
        for (Channel listener : listeners) listener.close().sync();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (isAnswering() && System.nanoTime() < deadline) Thread.sleep(10);
    }

    /** A client's connection. */
    final class Connection extends SimpleChannelInboundHandler<FullHttpRequest> {
        /** The constants that its last request with constants brought. Of one request at a time. */
        ColumnsRequest.Kept kept;
        private volatile boolean isClosed;
        private volatile boolean isSending;
        private boolean isBusy;
        /** Whether it is one too many. */
        private boolean isExcess;

        boolean isClosed() {
            return isClosed;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            int excess = open.incrementAndGet() - limits.connections();
            isExcess = excess > 0;
            if (excess > MOST_REFUSED) context.close();
            else context.read();
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            isClosed = true;
            open.decrementAndGet();
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            if (request.decoderResult().isFailure()) {
                context.close();
                return;
            }
            isBusy = true;
            running.incrementAndGet();
            if (isExcess && request.method().equals(HttpMethod.POST)) {
                send(context, answering.refuse(), false);
                return;
            }
            request.retain();
            if (answering.isImmediate(request)) {
                answer(context, request);
                return;
            }
            try {
                workers.execute(() -> answer(context, request));
            } catch (RejectedExecutionException cause) {
                request.release();
                send(context, answering.refuse(), false);
            }
        }

        private void answer(ChannelHandlerContext context, FullHttpRequest request) {
            Response response = null;
            try {
                if (!isClosed) response = answering.answer(request, this);
            } catch (UserFunction.Cancelled cancelled) {
                // Nobody reads an answer.
            } finally {
                request.release();
                if (response != null) {
                    send(context, response, HttpUtil.isKeepAlive(request));
                } else {
                    running.decrementAndGet();
                    context.close();
                }
            }
        }

        private void send(ChannelHandlerContext context, Response response, boolean isKept) {
            DefaultFullHttpResponse message = new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.valueOf(response.status()), response.body());
            message.headers().set(HttpHeaderNames.CONTENT_TYPE, response.contentType()).setInt(HttpHeaderNames.CONTENT_LENGTH, response.body().readableBytes());
            HttpUtil.setKeepAlive(message, isKept);
            isSending = true;
            ChannelFuture sent = context.writeAndFlush(message);
            sent.addListener((ChannelFutureListener) done -> {
                isSending = false;
                isBusy = false;
                running.decrementAndGet();
                if (isKept && done.isSuccess()) context.read();
                else context.close();
            });
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (!(event instanceof IdleStateEvent idle)) return;
            boolean isAsked = isBusy || idle.state() != IdleState.ALL_IDLE;
            // The first event after a write comes also if a part of the answer has gone since, any further one only if none has.
            boolean isUnread = isSending && idle.state() == IdleState.WRITER_IDLE && !idle.isFirst();
            if (!isAsked || isUnread) context.close();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            // The client has gone, or its request has no end.
            context.close();
        }
    }
}
