using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>The forms of docs/protocol.md §6 and §7 over HTTP.</summary>
    public static class Server
    {
        const string FunctionsPath = "/v1/functions/";
        const string ExchangesPath = "/v1/exchanges/";
        static readonly TimeSpan ExchangeIdle = TimeSpan.FromMinutes(10);
        static readonly TimeSpan StopPatience = TimeSpan.FromSeconds(10);

        static readonly Dictionary<string, Function> functions = new Dictionary<string, Function>();
        static readonly Dictionary<string, Groups> exchanges = new Dictionary<string, Groups>();

        [DllImport("libc", EntryPoint = "umask")]
        static extern uint SetUmask(uint mask);

        /// <summary>Runs a command, serve or describe, on the handler of an assembly; gives the exit status.</summary>
        public static int Run(Assembly assembly, string command)
        {
            var root = Environment.GetEnvironmentVariable("TRANSSHIP_ROOT") ?? "/opt/transship";
            // What the handler prints is a log, not an answer.
            var output = Console.Out;
            Console.SetOut(Console.Error);
            try
            {
                foreach (var function in Function.Load(JObject.Parse(File.ReadAllText(root + "/functions.json")), assembly)) functions.Add(function.Name, function);
            }
            catch (ArgumentException cause)
            {
                Console.Error.WriteLine("transship: " + cause.Message);
                return 1;
            }
            if (command != "describe") return Serve();
            var manifest = JObject.Parse(File.ReadAllText(root + "/manifest.json"));
            foreach (var entry in manifest["functions"].Where(entry => functions[(string)entry["name"]].Merges)) entry["merges"] = true;
            output.Write(manifest.ToString(Formatting.None));
            output.Flush();
            return 0;
        }

        static int Serve()
        {
            // The engine that connects is another user than this one; the directory around the socket decides who gets here.
            SetUmask(0);
            var server = new HttpServer(Answer);
            var folder = Environment.GetEnvironmentVariable("TRANSSHIP_SOCKET_DIR");
            var port = Environment.GetEnvironmentVariable("TRANSSHIP_HTTP_PORT");
            if (folder == null && port == null)
            {
                Console.Error.WriteLine("transship: set TRANSSHIP_SOCKET_DIR or TRANSSHIP_HTTP_PORT");
                return 1;
            }
            if (folder != null)
            {
                File.Delete(folder + "/http.sock");
#if NET
                server.Listen(new System.Net.Sockets.UnixDomainSocketEndPoint(folder + "/http.sock"));
#else
                server.Listen(new UnixDomainSocketEndPoint(folder + "/http.sock"));
#endif
            }
            if (port != null) server.Listen(new IPEndPoint(IPAddress.Any, int.Parse(port)));
            Console.Error.WriteLine("transship: ready, " + functions.Count + " functions");
            WaitForSignal();
            // What is running is finished.
            var patience = Stopwatch.StartNew();
            while (server.Running > 0 && patience.Elapsed < StopPatience) Thread.Sleep(10);
            return 0;
        }

        /// <summary>Returns on SIGTERM and SIGINT.</summary>
        static void WaitForSignal()
        {
#if NET
            var stopped = new ManualResetEvent(false);
            Action<PosixSignalContext> stop = context =>
            {
                context.Cancel = true;
                stopped.Set();
            };
            using (PosixSignalRegistration.Create(PosixSignal.SIGTERM, stop))
            using (PosixSignalRegistration.Create(PosixSignal.SIGINT, stop)) stopped.WaitOne();
#else
            Mono.Unix.UnixSignal.WaitAny(new[] { new Mono.Unix.UnixSignal(Mono.Unix.Native.Signum.SIGTERM), new Mono.Unix.UnixSignal(Mono.Unix.Native.Signum.SIGINT) });
#endif
        }

        static HttpReply Answer(HttpRequest request)
        {
            try
            {
                return Reply(request);
            }
            catch (Exception cause) when (!(cause is Cancelled))
            {
                var error = cause as CallError ?? CallError.Violation(cause.GetType().Name + ": " + cause.Message);
                var status = error.Kind == "function_not_found" ? 404 : error.Kind == "protocol_violation" ? 400 : 500;
                return HttpReply.Json(status, new JObject { { "error", error.ToWire() } }.ToString(Formatting.None));
            }
        }

        static HttpReply Reply(HttpRequest request)
        {
            if (request.Method == "GET" && request.Path == "/v1")
            {
                var greeting = new JObject { { "protocol", 1 }, { "server", "transship-csharp/0.2.0" }, { "functions", new JArray(functions.Keys) }, { "transports", new JArray("json", "socket") } };
                if (Environment.GetEnvironmentVariable("TRANSSHIP_SEGMENT_DIR") != null) ((JArray)greeting["transports"]).Add("shm");
                return HttpReply.Json(200, greeting.ToString(Formatting.None));
            }
            if (request.Method == "DELETE" && request.Path.StartsWith(ExchangesPath, StringComparison.Ordinal))
            {
                lock (exchanges) exchanges.Remove(request.Path.Substring(ExchangesPath.Length));
                return HttpReply.Json(200, "{}");
            }
            var name = request.Path.StartsWith(FunctionsPath, StringComparison.Ordinal) ? Uri.UnescapeDataString(request.Path.Substring(FunctionsPath.Length)) : request.Path;
            Function function;
            if (!functions.TryGetValue(name, out function)) throw new CallError("function_not_found", "there is no function \"" + name + "\"");
            if (request.Method == "GET")
            {
                var arguments = function.Arguments.Select(argument => new JObject { { "name", argument.Key }, { "type", argument.Value.Text } });
                return HttpReply.Json(200, new JObject { { "name", name }, { "kind", function.Kind }, { "arguments", new JArray(arguments) }, { "returns", function.Returns.Text } }.ToString(Formatting.None));
            }
            if (request.ContentType != ColumnsRequest.ContentType) return HttpReply.Json(200, Call(function, Parse(request.Body), request.IsCancelled));
            var inMemory = new ColumnsRequest(request.Body);
            int rows, count;
            long micros;
            var columns = inMemory.Columns(function.CallTypes, out rows);
            var results = JsonText.Parse("[" + Run(function, inMemory.Header, columns, rows, request.IsCancelled, out count, out micros) + "]");
            return new HttpReply { Status = 200, ContentType = ColumnsRequest.ContentType, Body = inMemory.Reply(function.ReplyTypes, (JArray)results, count, micros) };
        }

        static JObject Parse(byte[] body)
        {
            string fact;
            try
            {
                var request = JsonText.Parse(new UTF8Encoding(false, true).GetString(body)) as JObject;
                if (request != null) return request;
                fact = "it is not an object";
            }
            catch (Exception cause) when (cause is FormatException || cause is DecoderFallbackException)
            {
                fact = cause.Message;
            }
            throw CallError.Violation("the request cannot be read: " + fact);
        }

        static string Call(Function function, JObject call, Func<bool> isCancelled)
        {
            var given = call["columns"] as JArray;
            if (given == null || call["rows"] == null || call["rows"].Type != JTokenType.Integer) throw CallError.Violation("the request cannot be read: it has no rows and columns");
            var rows = (int)call["rows"];
            var columns = given.Select(column => column as JArray).ToArray();
            if (columns.Length != function.ColumnCount) throw CallError.Violation(function.Name + " takes " + function.ColumnCount + " columns, not " + columns.Length);
            if (rows < 0 || columns.Any(column => column == null || column.Count != rows)) throw CallError.Violation("columns and rows do not match");
            int count;
            long micros;
            var reply = Run(function, call, columns, rows, isCancelled, out count, out micros);
            return "{\"batch\":" + Number(call) + ",\"rows\":" + count + ",\"micros\":" + micros + ",\"columns\":[" + reply + "]}";
        }

        static long Number(JObject call)
        {
            return call["batch"] == null ? 0 : (long)call["batch"];
        }

        /// <summary>The reply's columns in JSON, its number of rows, and the microseconds that it took.</summary>
        static StringBuilder Run(Function function, JObject call, JArray[] columns, int rows, Func<bool> isCancelled, out int count, out long micros)
        {
            var watch = Stopwatch.StartNew();
            var reply = new StringBuilder();
            if (function.Kind == "aggregate")
            {
                var groups = FindGroups(function, (string)call["exchange"], Number(call));
                lock (groups) count = groups.Answer(columns, rows, (string)call["step"], isCancelled, reply);
            }
            else
            {
                count = function.Answer(columns, rows, isCancelled, reply);
            }
            micros = watch.ElapsedTicks * 1000000 / Stopwatch.Frequency;
            return reply;
        }

        static Groups FindGroups(Function function, string name, long number)
        {
            lock (exchanges)
            {
                foreach (var idle in exchanges.Where(entry => DateTime.UtcNow - entry.Value.Used > ExchangeIdle).ToList()) exchanges.Remove(idle.Key);
                if (number == 0 && name != null) exchanges[name] = new Groups(function);
                Groups groups;
                if (name == null || !exchanges.TryGetValue(name, out groups) || groups.Function != function) throw CallError.Violation("there is no exchange \"" + name + "\" of " + function.Name);
                groups.Used = DateTime.UtcNow;
                return groups;
            }
        }
    }
}
