using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Threading;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>Pulls calls from the server core, which speaks the protocol, and hands them to the handler.</summary>
    public static class Server
    {
        const int MostThreads = 64;
        /// <summary>
        /// How long a thread waits for work before it ends, if others wait too. Mono cannot stop a thread that is in the core, and a handler
        /// that calls Environment.Exit waits for that.
        /// </summary>
        const long IdleMs = 1000;

        static IntPtr server;
        static List<Function> functions;
        static readonly Dictionary<ulong, Groups> exchanges = new Dictionary<ulong, Groups>();
        static int waiting, threads;

        [DllImport("libc", EntryPoint = "_exit")]
        static extern void EndProcess(int status);

        /// <summary>Runs a command, serve or describe, on the handler of an assembly; gives the exit status.</summary>
        public static int Run(Assembly assembly, string command)
        {
            var root = Environment.GetEnvironmentVariable("TRANSSHIP_ROOT") ?? "/opt/transship";
            // What the handler prints is a log, not an answer.
            var output = Console.Out;
            Console.SetOut(Console.Error);
            try
            {
                server = Core.NewServer("{\"server\": \"transship-csharp/0.2.0\", \"columns\": \"plain\", \"tables\": true}");
                functions = Function.Load(JObject.Parse(File.ReadAllText(root + "/functions.json")), JObject.Parse(File.ReadAllText(root + "/manifest.json")), server, assembly);
                if (command == "describe")
                {
                    output.Write(Core.Describe(server, Enumerable.Range(0, functions.Count).Where(number => functions[number].Merges).Select(number => (UIntPtr)number).ToArray()));
                    output.Flush();
                    return 0;
                }
                Core.Start(server);
            }
            catch (Exception cause) when (cause is ArgumentException || cause is InvalidOperationException)
            {
                Console.Error.WriteLine("transship: " + cause.Message);
                return 1;
            }
            threads = 1;
            Pull(true);
            // Other threads may still be in a handler whose client has gone.
            EndProcess(0);
            return 0;
        }

        /// <summary>Takes one call after the other. There is always a thread that waits for the next, as long as there may be more.</summary>
        static void Pull(bool isFirst)
        {
            while (true)
            {
                Interlocked.Increment(ref waiting);
                IntPtr work;
                var status = Core.Next(server, IdleMs, out work);
                var isLastWaiting = Interlocked.Decrement(ref waiting) == 0;
                if (status == Core.Ok)
                {
                    if (isLastWaiting) AddThread();
                    Answer(work);
                }
                else if (status != Core.Nothing || !isFirst && !isLastWaiting)
                {
                    Interlocked.Decrement(ref threads);
                    return;
                }
            }
        }

        static void AddThread()
        {
            if (Interlocked.Increment(ref threads) <= MostThreads)
            {
                try
                {
                    new Thread(() => Pull(false)) { IsBackground = true }.Start();
                    return;
                }
                catch (Exception cause) when (cause is ThreadStartException || cause is OutOfMemoryException)
                {
                    // There are as many as this container may have: the first that is done takes the next call.
                }
            }
            Interlocked.Decrement(ref threads);
        }

        static void Answer(IntPtr work)
        {
            Call call = null;
            try
            {
                var info = Core.Info(work);
                if (info.Step == Step.End)
                {
                    lock (exchanges) exchanges.Remove(info.Exchange);
                    Core.Answer(work, 0, new Core.Column[0]);
                    return;
                }
                if (info.Step == Step.Resume)
                {
                    // Threads that wait for a stream look themselves.
                    Core.Answer(work, 0, new Core.Column[0]);
                    return;
                }
                call = new Call(work, info);
                var reply = CallTables.With(work, () => Reply(call, info));
                Results.Lend(reply, lent =>
                {
                    Core.Answer(work, reply.Length == 0 ? 0 : reply[0].Rows, lent);
                    return true;
                });
            }
            catch (Cancelled)
            {
                call.CancelTasks();
                Core.Fail(work, new CallError("user_code", "cancelled"));
            }
            catch (Exception cause)
            {
                if (call != null) call.CancelTasks();
                Core.Fail(work, (CallError)CallError.FromHandler(cause, null));
            }
        }

        static Results[] Reply(Call call, Core.WorkInfo info)
        {
            var function = functions[(int)info.Function];
            if (info.Step == Step.Map) return function.AnswerStream(call);
            var columns = Core.Columns(call.Work, call.Rows);
            if (info.Step == Step.Call) return function.Answer(call, columns);
            Groups groups;
            lock (exchanges)
            {
                if (!exchanges.TryGetValue(info.Exchange, out groups)) exchanges[info.Exchange] = groups = new Groups(function);
            }
            // An exchange has one unit of work at a time, and its end is one of them.
            return groups.Answer(call, columns, info.Step);
        }
    }
}
